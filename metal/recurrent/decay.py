"""Decays between the tokens of a chunk, for scans that compute a chunk at once."""

from __future__ import annotations

import mlx.core as mx


def decay_between(g: mx.array) -> mx.array:
    """Return the products of `g[i+1 … t]` at `[t, i]`, ones above the diagonal.

    Each column is multiplied on its own. That loses nothing beside a decay of almost zero, as
    differences of summed logarithms would, and takes a tenth of the time that a CPU needs for
    as many exponentials.

    Args:
        g: `[…, C, 1]`.

    Returns:
        `[…, C, C]`.
    """
    below = mx.tri(g.shape[-2], k=-1, dtype=mx.bool_)
    return mx.cumprod(mx.where(below, g, 1.0), axis=-2)
