"""Attention of one layer, with keys of its own or those of an earlier layer."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext

from .config import Gemma4Config

SCALE = 1.0
"""Factor on the scores: norms with weights have set the size of queries and keys."""


class Attention(nn.Module):
    """Attention with normed queries, keys and values; a value's norm has no weights."""

    def __init__(self, config: Gemma4Config, layer: int) -> None:
        super().__init__()
        own, dims, bias = config.attention_of(layer), config.hidden_size, config.attention_bias
        heads, kv_dims = config.num_attention_heads, own.num_kv_heads * own.head_dim
        self.layer = layer
        self.rope = own.rope
        self.head_dim = own.head_dim
        self.eps = config.rms_norm_eps
        self.q_proj = nn.Linear(dims, heads * own.head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * own.head_dim, dims, bias=bias)
        self.q_norm = nn.RMSNorm(own.head_dim, eps=self.eps)
        if config.anchor(layer) is not None:
            return
        self.k_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.k_norm = nn.RMSNorm(own.head_dim, eps=self.eps)
        if not own.keys_are_values:
            self.v_proj = nn.Linear(dims, kv_dims, bias=bias)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        q = context.rope(self.q_norm(self._heads(self.q_proj(x))), self.rope)
        k, v = self._keys_and_values(x, context) if "k_proj" in self else (None, None)
        out = context.attend(self.layer, q, k, v, scale=SCALE)
        return self.o_proj(out.reshape(x.shape[0], -1))

    def _keys_and_values(
        self, x: mx.array, context: ForwardContext
    ) -> tuple[mx.array, mx.array]:
        k = self._heads(self.k_proj(x))
        # where keys are values, it is the projection that they share: norms differ
        v = self._heads(self.v_proj(x)) if "v_proj" in self else k
        k = context.rope(self.k_norm(k), self.rope)
        return k, mx.fast.rms_norm(v, None, self.eps)

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(x.shape[0], -1, self.head_dim)
