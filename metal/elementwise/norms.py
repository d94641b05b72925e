"""RMS norms in MLX operations. A CPU that fuses operations fuses the norms of few tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import attrs
import mlx.core as mx

from ..runtime import device
from ..runtime.fusion import fused, fuses

FEW_ELEMENTS = 4096
"""Largest size at which the start of an operation costs more than its arithmetic."""


class Norm(Protocol):
    """An RMS norm of the last axis: `x / sqrt(mean(x²) + eps) * weight`."""

    @property
    def weight(self) -> mx.array | None:
        """Weight `[D]`; None for ones."""
        ...

    @property
    def eps(self) -> float:
        """Number that is added to the mean of squares."""
        ...

    @property
    def zero_centred(self) -> bool:
        """Whether the norm multiplies by `1 + weight`."""
        ...

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x [..., D]` normed over its last axis."""
        ...


def is_few(x: mx.array) -> bool:
    """Whether a norm of `x` consists of fused operations.

    On a CPU, MLX's own norm has as many operations, but Python does not build their graph.
    """
    return x.size <= FEW_ELEMENTS and fuses() and not device.is_gpu()


def normed(x: mx.array, dims: int, eps: float) -> mx.array:
    """Return `x [..., dims]` normed, float32."""
    x = x.astype(mx.float32)
    return x * mx.rsqrt(mx.square(x).sum(axis=-1, keepdims=True) * (1 / dims) + eps)


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """Return `x / sqrt(mean(x²) + eps) * weight` over the last axis.

    The mean is float32. The number of elements does not change a bit of the result.

    Args:
        x: `[..., D]`.
        weight: `[D]`; None for ones.
        eps: Number that is added to the mean.

    Returns:
        `[..., D]`, in the wider one of the dtypes of `x` and `weight`.
    """
    if not is_few(x):
        return mx.fast.rms_norm(x, weight, eps)
    if weight is None:
        return _few_plain(x.shape[-1], eps)(x)
    return _few_weighted(x.shape[-1], eps)(x, weight)


@functools.cache
def _few_plain(dims: int, eps: float) -> Callable[[mx.array], mx.array]:
    return fused(lambda x: normed(x, dims, eps).astype(x.dtype))


@functools.cache
def _few_weighted(dims: int, eps: float) -> Callable[[mx.array, mx.array], mx.array]:
    return fused(lambda x, weight: normed(x, dims, eps).astype(x.dtype) * weight)


def zero_centred_rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Return `x / sqrt(mean(x²) + eps) * (1 + weight)` over the last axis, in the dtype of `x`.

    The sum `1 + weight` is float32, because bfloat16 would round a small weight away.

    Args:
        x: `[..., D]`.
        weight: `[D]`; the factor is `1 + weight`.
        eps: Number that is added to the mean.
    """
    if is_few(x):
        return _few_zero_centred(x.shape[-1], eps)(x, weight)
    scale = 1.0 + weight.astype(mx.float32)
    return mx.fast.rms_norm(x, scale, eps).astype(x.dtype)


@functools.cache
def _few_zero_centred(dims: int, eps: float) -> Callable[[mx.array, mx.array], mx.array]:
    def norm(x: mx.array, weight: mx.array) -> mx.array:
        scale = 1.0 + weight.astype(mx.float32)
        return (normed(x, dims, eps) * scale).astype(x.dtype)

    return fused(norm)


@attrs.frozen(eq=False)
class ProbeNorm:
    """A norm for self-checks."""

    weight: mx.array | None
    eps: float
    zero_centred: bool

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x` normed over its last axis."""
        weight = self.weight
        return mx.fast.rms_norm(
            x, weight + 1 if weight is not None and self.zero_centred else weight, self.eps
        )
