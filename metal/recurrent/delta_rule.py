"""The gated delta rule: a decaying matrix per head that corrects the values it recalls.

The state `S [Dv, Dk]` of a head maps keys to values. A token multiplies the state by the decay
`g`. Then the value recalled for the token's key moves towards the token's value by `beta`:

    S' = g S        u = beta (v - S' k)        S = S' + u kᵀ        y = S q

Source: Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule".
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..runtime.fusion import fused
from .decay import decay_between

CHUNK = 64
"""Most tokens of a chunk."""

PIECE = 512
"""Tokens whose chunks are computed together: their temporaries have to fit into the caches."""


def gated_delta_reference(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_g: mx.array,
    beta: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Compute `gated_delta.gated_delta` in MLX operations.

    One token is a step of its own. More tokens are computed in chunks; the last chunk is as
    narrow as a power of two allows.
    """
    if k.shape[1] <= PIECE:
        return _piece(q, k, v, log_g, beta, state)
    outs: list[mx.array] = []
    for start in range(0, k.shape[1], PIECE):
        part = slice(start, start + PIECE)
        out, state = _piece(
            q[:, part], k[:, part], v[:, part], log_g[:, part], beta[:, part], state
        )
        outs.append(out)
    return mx.concatenate(outs, axis=1), state


def _piece(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    log_g: mx.array,
    beta: mx.array,
    state: mx.array,
) -> tuple[mx.array, mx.array]:
    """Compute one piece of `gated_delta_reference`."""
    num_rows, length, num_keys, _ = k.shape
    grouped = state.reshape(num_rows, num_keys, -1, *state.shape[2:])
    inputs = [x.astype(mx.float32) for x in (q, k, v, log_g, beta)]
    run = _step if length == 1 else _chunks
    out, grouped = run(inputs, grouped)
    return out.reshape(v.shape).astype(v.dtype), grouped.reshape(state.shape)


@fused
def _updated(state: mx.array, g: mx.array, u: mx.array, k: mx.array) -> mx.array:
    return state * g + u * k


@fused
def _corrected(
    recalled_k: mx.array,
    recalled_q: mx.array,
    v: mx.array,
    g: mx.array,
    beta: mx.array,
    overlap: mx.array,
) -> tuple[mx.array, mx.array]:
    """Return the correction `u` and the output, given the values the old state recalls."""
    u = (v - recalled_k * g) * beta
    return u, recalled_q * g + u * overlap


def _step(inputs: Sequence[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """Compute one token; the old state is read once for key and query, once for the update.

    The output needs no read of the new state: `S q = S' q + u (k·q)`.

    Args:
        inputs: Inputs of `gated_delta_reference`, float32.
        state: `[N, Hk, Hv / Hk, Dv, Dk]`.

    Returns:
        Outputs `[N, Hk, Hv / Hk, Dv, 1]`, and the new state.
    """
    q, k, v, log_g, beta = inputs
    heads = state.shape[:3]
    g = mx.exp(log_g).reshape(*heads, 1, 1)
    pair = mx.concatenate([k, q], axis=1).transpose(0, 2, 3, 1)[:, :, None]
    recalled_k, recalled_q = mx.split(state @ pair, 2, axis=-1)
    overlap = (k * q).sum(axis=-1).reshape(*heads[:2], 1, 1, 1)
    u, out = _corrected(
        recalled_k,
        recalled_q,
        v.reshape(*heads, -1, 1),
        g,
        beta.reshape(*heads, 1, 1),
        overlap,
    )
    return out, _updated(state, g, u, k.reshape(*heads[:2], 1, 1, -1))


def _chunks(inputs: Sequence[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """Compute many tokens; shapes as in `_step`, outputs `[N, L, Hk, Hv / Hk, Dv]`."""
    q, k, v, log_g, beta = inputs
    num_keys = state.shape[1]
    tokens = [_head_major(x, num_keys) for x in (q, k, v, log_g[..., None], beta[..., None])]
    length = k.shape[1]
    whole = length - length % CHUNK
    parts: list[mx.array] = []
    if whole:
        out, state = _scan([x[..., :whole, :] for x in tokens], state, CHUNK)
        parts.append(out)
    if whole < length:
        width = 1 << (length - whole - 1).bit_length()
        out, state = _scan([x[..., whole:, :] for x in tokens], state, width)
        parts.append(out)
    out = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=3)
    return mx.moveaxis(out, 3, 1), state


def _head_major(x: mx.array, num_keys: int) -> mx.array:
    """Return `[N, Hk, G, L, D]` for `x [N, L, H, D]`, with G heads for each key head."""
    num_rows, length, _, dims = x.shape
    return mx.moveaxis(x.reshape(num_rows, length, num_keys, -1, dims), 1, 3)


def _scan(tokens: Sequence[mx.array], state: mx.array, width: int) -> tuple[mx.array, mx.array]:
    """Compute many tokens, `width` at a time.

    With `G_t` the product of a chunk's decays up to its token `t`, and `D_ti` the product of
    the decays after `i` up to `t`, the corrections `U [C, Dv]` solve a triangular system

        (1 + A) U = beta (V - G K S₀ᵀ)        A_ti = beta_t D_ti (k_t·k_i), i < t

    whose inverse does not depend on the state. So only the terms linear in `S₀` run chunk after
    chunk. Padding tokens have beta = 0 and g = 1, so they do not change the state.
    """
    length = tokens[0].shape[-2]
    q, k, v, log_g, beta = (_chunked(x, width) for x in tokens)
    decay = decay_between(mx.exp(log_g))
    since_start = mx.exp(mx.cumsum(log_g, axis=-2))
    scores = mx.concatenate([k, q], axis=-2) @ k.swapaxes(-1, -2)
    before = mx.tril(scores[..., :width, :] * decay * beta, -1)
    upto = mx.tril(scores[..., width:, :] * decay)
    solution = unit_lower_inverse(before) * beta.swapaxes(-1, -2)
    recall = mx.concatenate([solution * since_start.swapaxes(-1, -2) @ k, q * since_start], -2)
    target = solution @ v
    left = k * decay[..., -1:, :].swapaxes(-1, -2)
    parts: list[mx.array] = []
    steps = (recall, target, upto, left, since_start[..., -1:, :])
    for recall_c, target_c, upto_c, left_c, g_c in zip(
        *(_one_by_one(x) for x in steps), strict=True
    ):
        recalled = recall_c @ state.swapaxes(-1, -2)
        u = target_c - recalled[..., :width, :]
        parts.append(recalled[..., width:, :] + upto_c @ u)
        state = state * g_c + u.swapaxes(-1, -2) @ left_c
    out = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-2)
    return out[..., :length, :], state


def _one_by_one(x: mx.array) -> list[mx.array]:
    """Return a view `x[i]` of each chunk; an index operation would copy."""
    return [chunk.squeeze(0) for chunk in x.split(x.shape[0])]


def _chunked(x: mx.array, width: int) -> mx.array:
    """Return `[chunks, N, Hk, G, width, D]`, zeros after the last token."""
    *heads, length, dims = x.shape
    missing = -length % width
    if missing:
        x = mx.concatenate([x, mx.zeros((*heads, missing, dims))], axis=-2)
    return mx.moveaxis(x.reshape(*heads, -1, width, dims), 3, 0)


def unit_lower_inverse(a: mx.array) -> mx.array:
    """Return the inverse of `1 + a` for a strictly lower triangular `a [..., C, C]`.

    Inverses of blocks on the diagonal double in width until one block is left, with

        [X 0; B Y]⁻¹ = [X⁻¹ 0; -Y⁻¹ B X⁻¹ Y⁻¹]

    A series of powers of `a` needs as many doublings. But its terms grow like binomial
    coefficients and cancel: with equal keys, 64 tokens lose all digits of a float32.

    Args:
        a: Matrices; `C` is a power of two. Elements on or above the diagonal are ignored.
    """
    *batch, size, _ = a.shape
    inverse = mx.ones((*batch, size, 1, 1))
    width = 1
    while width < size:
        num = size // (2 * width)
        lower = a.reshape(*batch, num, 2, width, num, 2, width)[..., 1, :, :, 0, :]
        lower = mx.moveaxis(mx.diagonal(lower, axis1=-4, axis2=-2), -1, -3)
        pairs = inverse.reshape(*batch, num, 2, width, width)
        first, second = pairs[..., 0, :, :], pairs[..., 1, :, :]
        below = mx.concatenate([-(second @ lower @ first), second], axis=-1)
        above = mx.concatenate([first, mx.zeros_like(first)], axis=-1)
        inverse = mx.concatenate([above, below], axis=-2)
        width *= 2
    return inverse.reshape(a.shape)
