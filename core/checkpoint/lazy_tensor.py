"""A tensor of a checkpoint with a known shape, read on demand."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx


@attrs.frozen(eq=False)
class LazyTensor:
    """One tensor of a checkpoint.

    Attributes:
        shape: Shape of the tensor.
        dtype: Dtype of the tensor.
        read: Returns the tensor as a fresh array of the calling thread; no other reference to
            the array is kept.
    """

    shape: tuple[int, ...]
    dtype: mx.Dtype
    read: Callable[[], mx.array]

    def mapped(self, fn: Callable[[mx.array], mx.array]) -> LazyTensor:
        """Return `fn` of this tensor, computed when the result is read.

        `fn` is also called once with an unevaluated placeholder, for the shape and dtype of
        the result, so `fn` must not inspect values.
        """
        result = fn(mx.zeros(self.shape, self.dtype))
        return LazyTensor(result.shape, result.dtype, lambda: fn(self.read()))
