"""A quantised embedding that answers in the model's dtype."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn


class CastEmbedding(nn.QuantizedEmbedding):
    """An embedding in one of the floating-point modes, cast to a dtype.

    MLX looks these modes up as bfloat16 whatever the model computes in, which would make
    bfloat16 of a float32 model's residual stream. The cast loses nothing: an element times
    its scale has at most seven significant bits.
    """

    def __init__(self, layer: nn.QuantizedEmbedding, dtype: mx.Dtype) -> None:
        super().__init__(
            layer.num_embeddings, layer.dims, layer.group_size, layer.bits, layer.mode
        )
        self._dtype = dtype

    def __call__(self, x: mx.array) -> mx.array:
        """Return `[…, dims]` for token ids `x […]`."""
        return super().__call__(x).astype(self._dtype)
