"""Norms, and sums of the residual stream fused with the norm that follows."""

from __future__ import annotations

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..metal.elementwise.norms import FEW_ELEMENTS, Norm, rms_norm, zero_centred_rms_norm
from ..metal.elementwise.residual import add_rms_norm

__all__ = [
    "FEW_ELEMENTS",
    "Norm",
    "RMSNorm",
    "UnweightedRMSNorm",
    "ZeroCentredRMSNorm",
    "rms_norm",
]


class ResidualNorm(nn.Module):
    """A norm with weights that may follow a sum of the residual stream.

    Attributes:
        weight: `[dims]`.
        eps: Added to the mean of squares.
        zero_centred: Whether the weight is a distance from one.
    """

    zero_centred = False

    def __init__(self, weight: mx.array, *, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x [..., dims]` normed over its last axis."""
        raise NotImplementedError

    def add(
        self, x: mx.array, delta: mx.array | None, *, after: Norm | None = None
    ) -> tuple[mx.array, mx.array]:
        """Add a block's output to the residual stream, and norm the sum for the next block.

        Args:
            x: The residual stream, `[T, dims]`.
            delta: The block's output; None before the first block.
            after: A norm of `delta` before the addition.

        Returns:
            The stream, and its norm.
        """
        if delta is None:
            return x, self(x)
        return add_rms_norm(x, delta, self, after)

    def add_rows(
        self,
        x: mx.array,
        delta: mx.array | None,
        rows: mx.array,
        *,
        after: Norm | None = None,
    ) -> mx.array:
        """Return the norm of some rows of the residual stream, after the last block.

        Args:
            x: The stream, `[T, dims]`.
            delta: The last block's output; None without a block.
            rows: Indices `[R]` of the rows, strictly ascending.
            after: A norm of `delta` before the addition.
        """
        if rows.shape[0] < x.shape[0]:
            x, delta = x[rows], None if delta is None else delta[rows]
        return self.add(x, delta, after=after)[1]


class RMSNorm(ResidualNorm):
    """An RMS norm with the parameters of `mlx.nn.RMSNorm`."""

    def __init__(self, dims: int, *, eps: float) -> None:
        super().__init__(mx.ones((dims,)), eps=eps)

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x [..., dims]` normed over its last axis."""
        return rms_norm(x, self.weight, self.eps)


class ZeroCentredRMSNorm(ResidualNorm):
    """An RMS norm with a weight that is stored as its distance from one."""

    zero_centred = True

    def __init__(self, dims: int, *, eps: float) -> None:
        super().__init__(mx.zeros((dims,)), eps=eps)

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x [..., dims]` normed over its last axis, in its own dtype."""
        return zero_centred_rms_norm(x, self.weight, self.eps)


@attrs.frozen
class UnweightedRMSNorm:
    """An RMS norm without parameters.

    Attributes:
        eps: Added to the mean of squares.
    """

    eps: float
    weight = None
    zero_centred = False

    def __call__(self, x: mx.array) -> mx.array:
        """Return `x [..., dims]` normed over its last axis."""
        return rms_norm(x, None, self.eps)
