"""A tensor of a checkpoint that is known by shape and read on demand."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx


@attrs.frozen(eq=False)
class LazyTensor:
    """One tensor of a checkpoint.

    Attributes:
        shape: Its shape, known without reading it.
        dtype: Its dtype.
        read: Returns it as a fresh array, of which the tensor keeps no reference; the
            array belongs to the calling thread.
    """

    shape: tuple[int, ...]
    dtype: mx.Dtype
    read: Callable[[], mx.array]

    def mapped(self, fn: Callable[[mx.array], mx.array]) -> LazyTensor:
        """Return `fn` of this tensor, to be computed when it is read.

        `fn` is also asked once for an unevaluated stand-in, to learn the shape and dtype
        of its result. So it must not look at values.
        """
        result = fn(mx.zeros(self.shape, self.dtype))
        return LazyTensor(result.shape, result.dtype, lambda: fn(self.read()))
