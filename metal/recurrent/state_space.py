"""Mamba-2: a decaying matrix per head, to which each token adds an outer product.

A token multiplies the state `S [P, n]` of a head by the decay `g = exp(dt A)`, and adds the
outer product of the head's input `x [P]` and `B [n]`. The output is the product with `C [n]`:

    S = g S + dt x Bᵀ        y = S C + D x

A group of consecutive heads shares `B` and `C`.

Source: Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
Structured State Space Duality".
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..runtime.fusion import fused
from .decay import decay_between


def mamba2_reference(
    x: mx.array,
    dt: mx.array,
    a: mx.array,
    b: mx.array,
    c: mx.array,
    state: mx.array,
    *,
    chunk: int,
) -> tuple[mx.array, mx.array]:
    """Compute `mamba2.mamba2` in MLX operations.

    One token is a step of its own. More tokens are computed in chunks; the last chunk has the
    remaining tokens, without padding.
    """
    x, dt, a, b, c = (t.astype(mx.float32) for t in (x, dt, a, b, c))
    before = _grouped(state, b.shape[2])
    if x.shape[1] == 1:
        out, after = _step(x, dt, a, b, c, before)
    else:
        out, after = _chunks((x * dt[..., None], dt * a, b, c), before, chunk)
    return out.reshape(x.shape), after.reshape(state.shape)


def _grouped(state: mx.array, num_groups: int) -> mx.array:
    """Return `[N, G, H/G, P, n]` for a state `[N, H, P, n]`."""
    return state.reshape(state.shape[0], num_groups, -1, *state.shape[2:])


@fused
def _updated(state: mx.array, g: mx.array, x: mx.array, dt: mx.array, b: mx.array) -> mx.array:
    return state * g + (x * dt) * b


@fused
def _read(
    recalled: mx.array, g: mx.array, x: mx.array, dt: mx.array, overlap: mx.array
) -> mx.array:
    return recalled * g + (x * dt) * overlap


@fused
def _decay(dt: mx.array, a: mx.array) -> mx.array:
    return mx.exp(dt * a)


def _step(
    x: mx.array, dt: mx.array, a: mx.array, b: mx.array, c: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """Compute one token; the old state is read once for `C`, once for the update.

    The output needs no read of the new state: `S C = g S₀ C + dt x (B·C)`.

    Args:
        x: As in `mamba2_reference`, with `L = 1`.
        dt: As in `mamba2_reference`.
        a: As in `mamba2_reference`.
        b: As in `mamba2_reference`.
        c: As in `mamba2_reference`.
        state: `[N, G, H/G, P, n]`.

    Returns:
        Outputs `[N, G, H/G, P, 1]`, and the new state.
    """
    heads, groups = state.shape[:3], state.shape[:2]
    g = _decay(dt, a).reshape(*heads, 1, 1)
    x, dt = x.reshape(*heads, -1, 1), dt.reshape(*heads, 1, 1)
    overlap = (b * c).sum(axis=-1).reshape(*groups, 1, 1, 1)
    flat = state.reshape(*groups, -1, state.shape[-1])
    recalled = (flat @ c.reshape(*groups, -1, 1)).reshape(x.shape)
    after = _updated(state, g, x, dt, b.reshape(*groups, 1, 1, -1))
    return _read(recalled, g, x, dt, overlap), after


def _chunks(
    tokens: Sequence[mx.array], state: mx.array, width: int
) -> tuple[mx.array, mx.array]:
    """Compute many tokens, `width` at a time.

    Args:
        tokens: `dt x`, the logarithms of `g`, `B` and `C`, shaped as in `mamba2_reference`.
        state: `[N, G, H/G, P, n]`.
        width: Tokens of a chunk.
    """
    length = tokens[0].shape[1]
    whole = length - length % width
    parts: list[mx.array] = []
    for start, end, size in ((0, whole, width), (whole, length, length - whole)):
        if start < end:
            out, state = _scan([t[:, start:end] for t in tokens], state, size)
            parts.append(out)
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1), state


def _scan(tokens: Sequence[mx.array], state: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """Compute whole chunks of tokens.

    Within a chunk, the input of token `i` contributes to token `t` with the factor `(C_t·B_i)
    D_ti`; `D_ti` is the product of the decays after `i` up to `t`. The state `S₀` before the
    chunk contributes with the product of all decays up to `t`. Only the states at the borders
    run chunk after chunk.
    """
    num_rows, length = tokens[0].shape[:2]
    x, log_g, b, c = (_chunked(t, state.shape[1], width) for t in tokens)
    seen = (mx.tril(c @ b.swapaxes(-1, -2)) * decay_between(mx.exp(log_g))) @ x
    # sums start at the border of a chunk, so that no digits cancel
    since_start = mx.exp(mx.cumsum(log_g, axis=-2))
    until_end = mx.exp(mx.cumsum(log_g, axis=-2, reverse=True, inclusive=False))
    added = (x * until_end).swapaxes(-1, -2) @ b
    states: list[mx.array] = []
    for faded, new in zip(_each(since_start[..., -1:, :]), _each(added), strict=True):
        states.append(state)
        state = state * faded + new
    seen = seen + (c @ mx.stack(states).swapaxes(-1, -2)) * since_start
    return mx.moveaxis(seen, 4, 2).swapaxes(0, 1).reshape(num_rows, length, -1), state


def _each(x: mx.array) -> list[mx.array]:
    return [part[0] for part in x.split(x.shape[0])]


def _chunked(x: mx.array, num_groups: int, width: int) -> mx.array:
    """Return `[chunks, N, G, H/G, width, D]` for `x [N, L, H]` or `[N, L, H, D]`."""
    num_rows, length, heads, *_ = x.shape
    shape = (num_rows, length // width, width, num_groups, heads // num_groups, -1)
    return x.reshape(shape).transpose(1, 0, 3, 4, 2, 5)
