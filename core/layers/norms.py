"""Norms that MLX does not have as a layer."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class ZeroCentredRMSNorm(nn.Module):
    """An RMS norm whose weight is stored as its distance from one.

    The one is added in float32: bfloat16 has no room for it beside a small weight.
    """

    def __init__(self, dims: int, *, eps: float) -> None:
        super().__init__()
        self.weight = mx.zeros((dims,))
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x [..., dims]` normed over its last axis, in its own dtype."""
        scale = 1.0 + self.weight.astype(mx.float32)
        return mx.fast.rms_norm(x, scale, self._eps).astype(x.dtype)


class GatedRMSNorm(nn.Module):
    """`rms_norm(x) * weight * silu(gate)`: the norm comes before the gate."""

    def __init__(self, dims: int, *, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((dims,))
        self._eps = eps

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        """Return `x [..., dims]` normed over its last axis and gated, in its own dtype."""
        normed = mx.fast.rms_norm(x, self.weight, self._eps)
        return (normed * nn.silu(gate.astype(mx.float32))).astype(x.dtype)


def l2_norm(x: mx.array, *, eps: float) -> mx.array:
    """Return `x / sqrt(sum(x²) + eps)` over the last axis.

    One over the root of the width turns an RMS norm into it, and `eps` of a sum is
    `eps / width` of a mean.
    """
    dims = x.shape[-1]
    return mx.fast.rms_norm(x, None, eps / dims) * dims**-0.5
