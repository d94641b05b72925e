"""Norms. On a CPU those of few tokens are made of fewer operations than MLX's own."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from ..metal import device
from ..metal.fusion import fused

FEW_ELEMENTS = 4096
"""Up to so many elements an operation costs more to start than to compute."""


def is_few(x: mx.array) -> bool:
    """Whether a norm of `x` is made of operations that may be fused, not MLX's own."""
    return x.size <= FEW_ELEMENTS and not device.is_gpu()


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """Return `x / sqrt(mean(x²) + eps) * weight` over the last axis.

    The mean is float32. Few elements and many give the same bits.

    Args:
        x: `[..., D]`.
        weight: `[D]`; None for ones.
        eps: Added to the mean.

    Returns:
        `[..., D]`, in the dtype of `x` or of `weight`, whichever is wider.
    """
    if not is_few(x):
        return mx.fast.rms_norm(x, weight, eps)
    if weight is None:
        return _few_plain(x.shape[-1], eps)(x)
    return _few_weighted(x.shape[-1], eps)(x, weight)


def _normed(x: mx.array, dims: int, eps: float) -> mx.array:
    """Return `x [..., dims]` normed, float32."""
    x = x.astype(mx.float32)
    return x * mx.rsqrt(mx.square(x).sum(axis=-1, keepdims=True) * (1 / dims) + eps)


@functools.cache
def _few_plain(dims: int, eps: float) -> Callable[[mx.array], mx.array]:
    return fused(lambda x: _normed(x, dims, eps).astype(x.dtype))


@functools.cache
def _few_weighted(dims: int, eps: float) -> Callable[[mx.array, mx.array], mx.array]:
    return fused(lambda x, weight: _normed(x, dims, eps).astype(x.dtype) * weight)


class RMSNorm(nn.Module):
    """An RMS norm with the parameters of MLX's own."""

    def __init__(self, dims: int, *, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((dims,))
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x [..., dims]` normed over its last axis."""
        return rms_norm(x, self.weight, self._eps)


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
        if is_few(x):
            return _few_zero_centred(x.shape[-1], self._eps)(x, self.weight)
        scale = 1.0 + self.weight.astype(mx.float32)
        return mx.fast.rms_norm(x, scale, self._eps).astype(x.dtype)


@functools.cache
def _few_zero_centred(dims: int, eps: float) -> Callable[[mx.array, mx.array], mx.array]:
    def norm(x: mx.array, weight: mx.array) -> mx.array:
        scale = 1.0 + weight.astype(mx.float32)
        return (_normed(x, dims, eps) * scale).astype(x.dtype)

    return fused(norm)


class GatedRMSNorm(nn.Module):
    """`rms_norm(x) * weight * silu(gate)`: the norm comes before the gate."""

    def __init__(self, dims: int, *, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((dims,))
        self._eps = eps

    def __call__(self, x: mx.array, gate: mx.array) -> mx.array:
        """Return `x [..., dims]` normed over its last axis and gated, in its own dtype."""
        if is_few(x):
            return _few_gated(x.shape[-1], self._eps)(x, gate, self.weight)
        normed = mx.fast.rms_norm(x, self.weight, self._eps)
        return (normed * nn.silu(gate.astype(mx.float32))).astype(x.dtype)


@functools.cache
def _few_gated(dims: int, eps: float) -> Callable[[mx.array, mx.array, mx.array], mx.array]:
    def norm(x: mx.array, gate: mx.array, weight: mx.array) -> mx.array:
        gate = gate.astype(mx.float32)
        normed = _normed(x, dims, eps).astype(x.dtype) * weight
        return (normed * (gate * mx.sigmoid(gate))).astype(x.dtype)

    return fused(norm)


def l2_norm(x: mx.array, *, eps: float) -> mx.array:
    """Return `x / sqrt(sum(x²) + eps)` over the last axis.

    One over the root of the width turns an RMS norm into it, and `eps` of a sum is
    `eps / width` of a mean.
    """
    dims = x.shape[-1]
    if is_few(x):
        return _few_unit(dims, eps)(x)
    return mx.fast.rms_norm(x, None, eps / dims) * dims**-0.5


@functools.cache
def _few_unit(dims: int, eps: float) -> Callable[[mx.array], mx.array]:
    def norm(x: mx.array) -> mx.array:
        return _normed(x, dims, eps / dims).astype(x.dtype) * dims**-0.5

    return fused(norm)
