"""One call of a family's recurrence (a scan)."""

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

    If `call.each` is set, tokens are computed one by one with the operations of decode steps,
    so that verified tokens equal decoded tokens.

    Args:
        layer: Index of the layer, for errors.
        inputs: Arrays `[T, …]` of the whole step.
        call: The call, with `N` rows of `L` tokens.
        state: The rows' state before the step.
        step: The recurrence.

    Returns:
        The output `[N * L, …]`, and the states: after each token, or after the last token.

    Raises:
        CacheMisuseError: The recurrence changed shapes or dtypes of the state.
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
