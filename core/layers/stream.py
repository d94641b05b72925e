"""The residual stream, with sums and norms fused into the products around them.

A block is written as its formula: `x = x + attention(norm(x))`, `x = x + mlp(norm(x))`. The
fusion is chosen when all operations are known. For few rows, a norm becomes part of the product
that reads the norm, and a sum becomes part of the product before the sum. For many rows, and
where no kernel fuses these, a sum is fused with the norm that follows.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..metal.elementwise.norms import Norm
from ..metal.linear.layout import added_projection, normed_projection
from .norms import ResidualNorm

__all__ = ["Delta", "Input", "Normed", "Stream", "project"]


@attrs.frozen(eq=False)
class Normed:
    """`norm(x)`, as input of a product.

    Attributes:
        x: `[T, dims]`.
        norm: Norm that is still to be applied to `x`; None if `x` is normed.
    """

    x: mx.array
    norm: ResidualNorm | None = None

    def computed(self) -> mx.array:
        """Return `norm(x)` from a separate operation, for readers other than products."""
        return self.x if self.norm is None else self.norm(self.x)


Input: TypeAlias = mx.array | Normed
"""Input of a product, `[T, dims]`."""


def project(layer: nn.Module, x: Input) -> mx.array:
    """Return `layer(x)` `[T, out]`; for few rows the norm is fused into the product."""
    if isinstance(x, Normed):
        if x.norm is not None:
            out = normed_projection(layer, x.x, x.norm)
            if out is not None:
                return out
        x = x.computed()
    return layer(x)


@attrs.frozen(eq=False)
class Delta:
    """A block's addition to the stream: `layer(x)`.

    Attributes:
        layer: The block's last layer.
        x: `[T, in]`, or the heads of an attention, `[T, H, D]`, to be flattened.
    """

    layer: nn.Module
    x: mx.array

    def computed(self) -> mx.array:
        """Return `layer(x)`, `[T, dims]`."""
        return self.layer(self.x if self.x.ndim == 2 else self.x.flatten(1))


@attrs.frozen(eq=False)
class Stream:
    """The stream between two blocks: `x + delta`, or `x + after(delta)`.

    Attributes:
        x: `[T, dims]`.
        delta: Addition that is still to be made; None for no addition.
        after: Norm of `delta` before the addition; None for no norm.
    """

    x: mx.array
    delta: mx.array | None = None
    after: Norm | None = None

    def add(self, delta: Delta | mx.array, *, after: Norm | None = None) -> Stream:
        """Return the stream with a block's addition.

        Args:
            delta: `[T, dims]`, computed or not.
            after: A norm of `delta` before the addition.
        """
        x = self.computed()
        if not isinstance(delta, Delta):
            return Stream(x, delta, after)
        # a norm needs the whole row, but each thread of a product has a part only
        total = None if after is not None else added_projection(delta.layer, delta.x, x)
        return Stream(x, delta.computed(), after) if total is None else Stream(total)

    def computed(self) -> mx.array:
        """Return the sum `[T, dims]`."""
        if self.delta is None:
            return self.x
        return self.x + (self.delta if self.after is None else self.after(self.delta))

    def rows(self, rows: mx.array) -> Stream:
        """Return some rows of the stream.

        Args:
            rows: Indices `[R]`, strictly ascending.
        """
        if rows.shape[0] == self.x.shape[0]:
            return self
        delta = None if self.delta is None else self.delta[rows]
        return Stream(self.x[rows], delta, self.after)

    def norm(self, norm: ResidualNorm) -> tuple[Stream, Normed]:
        """Return the stream, and the norm of its sum for the next block."""
        if self.delta is None:
            return self, Normed(self.x, norm)
        x, normed = norm.add(self.x, self.delta, after=self.after)
        return Stream(x), Normed(normed)

    def norm_rows(self, norm: ResidualNorm, rows: mx.array) -> mx.array:
        """Return the norm of some rows `[R, dims]`, after the last block.

        Args:
            norm: The model's last norm.
            rows: Indices `[R]`, strictly ascending.
        """
        return norm.add_rows(self.x, self.delta, rows, after=self.after)
