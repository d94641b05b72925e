"""One call of a family's recurrence."""

from __future__ import annotations

import mlx.core as mx

from ..contract.forward import ScanStep, State
from ..errors import CacheMisuseError


def scan_rows(
    layer: int,
    inputs: tuple[mx.array, ...],
    start: int,
    shape: tuple[int, int],
    state: State,
    step: ScanStep,
) -> tuple[mx.array, State]:
    """Run `step` over consecutive tokens.

    Args:
        layer: Index of the layer, for the error.
        inputs: Arrays `[T, …]` of the whole step.
        start: First token.
        shape: Rows `N` and tokens `L` a row; row by row they are `N * L` tokens.
        state: State before them.
        step: The recurrence.

    Returns:
        The output `[N * L, …]`, and the state after.

    Raises:
        CacheMisuseError: The state after is not of the shapes and dtypes of the one before.
    """
    num_rows, length = shape
    part = slice(start, start + num_rows * length)
    out, after = step(tuple(x[part].reshape(*shape, *x.shape[1:]) for x in inputs), state)
    if [(t.shape, t.dtype) for t in after] != [(t.shape, t.dtype) for t in state]:
        raise CacheMisuseError(
            f"keep the state of layer {layer}",
            f"its step returned {_describe(after)}, declared is {_describe(state)}",
        )
    return out.reshape(num_rows * length, *out.shape[2:]), after


def _describe(state: State) -> str:
    return ", ".join(f"{t.shape} {str(t.dtype).removeprefix('mlx.core.')}" for t in state)
