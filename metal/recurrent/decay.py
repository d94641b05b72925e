"""Decays between tokens of a chunk, for scans that compute whole chunks."""

from __future__ import annotations

import mlx.core as mx


def decay_between(g: mx.array) -> mx.array:
    """Return the products of `g[i+1 … t]` at `[t, i]`, ones above the diagonal.

    Each column is a product of its own. Differences of summed logarithms would lose precision
    next to a decay of almost zero, and their exponentials take ten times as long on a CPU.

    Args:
        g: `[…, C, 1]`.

    Returns:
        `[…, C, C]`.
    """
    below = mx.tri(g.shape[-2], k=-1, dtype=mx.bool_)
    return mx.cumprod(mx.where(below, g, 1.0), axis=-2)
