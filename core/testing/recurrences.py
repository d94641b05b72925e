"""Recurrences by definition, token by token in float64: references for fast forms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def gated_delta_by_token(inputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Apply the gated delta rule: decay, recall, correct.

    Args:
        inputs: Queries, keys, values, logarithms of decays, rates and a state, shaped as the
            arguments of `layers.gated_delta.gated_delta`.

    Returns:
        Outputs `[N, L, Hv, Dv]`, and the state `[N, Hv, Dv, Dk]` after the last token.
    """
    q, k, v, log_g, beta, state = (x.astype(np.float64) for x in inputs)
    q, k = (np.repeat(x, v.shape[2] // x.shape[2], axis=2) for x in (q, k))
    outs: list[Floats] = []
    for t in range(v.shape[1]):
        state = state * np.exp(log_g[:, t])[..., None, None]
        recalled = np.einsum("nhvk,nhk->nhv", state, k[:, t])
        u = beta[:, t, :, None] * (v[:, t] - recalled)
        state = state + u[..., None] * k[:, t, :, None]
        outs.append(np.einsum("nhvk,nhk->nhv", state, q[:, t]))
    return np.stack(outs, axis=1), state


def mamba2_by_token(inputs: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Apply Mamba-2, without the term `D x`.

    Args:
        inputs: Inputs, time steps, rates, `B`, `C` and a state, shaped as the arguments of
            `layers.mamba2.mamba2`.

    Returns:
        Outputs `[N, L, H, P]`, and the state `[N, H, P, n]` after the last token.
    """
    x, dt, a, b, c, state = (t.astype(np.float64) for t in inputs)
    b, c = (np.repeat(t, x.shape[2] // t.shape[2], axis=2) for t in (b, c))
    outs: list[Floats] = []
    for t in range(x.shape[1]):
        new = (dt[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
        state = state * np.exp(dt[:, t] * a)[..., None, None] + new
        outs.append(np.einsum("nhpi,nhi->nhp", state, c[:, t]))
    return np.stack(outs, axis=1), state


def distance(actual: Sequence[Floats], expected: Sequence[Floats]) -> float:
    """Return the largest difference in any array, relative to the array's largest element."""
    pairs = zip(actual, expected, strict=True)
    return max(float(np.abs(a - e).max() / np.abs(e).max()) for a, e in pairs)
