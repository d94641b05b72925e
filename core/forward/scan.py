"""One call of a family's recurrence."""

from __future__ import annotations

import mlx.core as mx

from ..contract.forward import ScanStep, State
from ..errors import CacheMisuseError
from ..pools.scan_calls import ScanCall


def scan_rows(
    layer: int,
    inputs: tuple[mx.array, ...],
    call: ScanCall,
    state: State,
    step: ScanStep,
) -> tuple[mx.array, list[State]]:
    """Run `step` over the tokens of one call.

    Where the state after each token is wanted, the tokens are computed one by one, with the
    same operations as in decode steps, so that verified tokens equal decoded ones.

    Args:
        layer: Index of the layer, for the error.
        inputs: Arrays `[T, …]` of the whole step.
        call: Which of the tokens; row by row they are `N * L`.
        state: State before them.
        step: The recurrence.

    Returns:
        The output `[N * L, …]`, and the states: after each token, or after the last one.

    Raises:
        CacheMisuseError: The state after is not of the shapes and dtypes of the one before.
    """
    n, length = call.num_rows, call.length
    part = slice(call.start, call.start + n * length)
    rows = tuple(x[part].reshape(n, length, *x.shape[1:]) for x in inputs)
    if not call.each:
        out, state = _checked(layer, step, rows, state)
        return out.reshape(n * length, *out.shape[2:]), [state]
    outputs: list[mx.array] = []
    states: list[State] = []
    for t in range(length):
        out, state = _checked(layer, step, tuple(x[:, t : t + 1] for x in rows), state)
        outputs.append(out)
        states.append(state)
    out = mx.concatenate(outputs, axis=1)
    return out.reshape(n * length, *out.shape[2:]), states


def _checked(
    layer: int, step: ScanStep, inputs: tuple[mx.array, ...], state: State
) -> tuple[mx.array, State]:
    out, after = step(inputs, state)
    if [(t.shape, t.dtype) for t in after] != [(t.shape, t.dtype) for t in state]:
        raise CacheMisuseError(
            f"keep the state of layer {layer}",
            f"its step returned {_describe(after)}, declared is {_describe(state)}",
        )
    return out, after


def _describe(state: State) -> str:
    return ", ".join(f"{t.shape} {str(t.dtype).removeprefix('mlx.core.')}" for t in state)
