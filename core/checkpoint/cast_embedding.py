"""A quantised embedding with output in the model's dtype."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class CastEmbedding(nn.QuantizedEmbedding):
    """An embedding quantised in a floating-point mode, cast to a dtype.

    In these modes MLX's lookup returns bfloat16 whatever the model's dtype, and would turn the
    residual stream of a float32 model into bfloat16. The cast is exact: an element times its
    scale has at most seven significant bits.
    """

    def __init__(self, layer: nn.QuantizedEmbedding, dtype: mx.Dtype) -> None:
        super().__init__(
            layer.num_embeddings, layer.dims, layer.group_size, layer.bits, layer.mode
        )
        self._dtype = dtype

    def __call__(self, x: mx.array) -> mx.array:
        """Return `[…, dims]` for token ids `x […]`."""
        return super().__call__(x).astype(self._dtype)
