"""Attention of one layer, with its own keys or with the keys of an earlier layer."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, Scoring
from neve.layers.heads import HeadShape, Projected
from neve.layers.joint import JointModule
from neve.layers.norms import RMSNorm, UnweightedRMSNorm
from neve.layers.stream import Normed, project

from .config import Gemma4Config

SCORING = Scoring(1.0)
"""The scale is 1 because the weights of the norms set the size of queries and keys."""


def attention(config: Gemma4Config, layer: int) -> Attention:
    """Return the attention of a layer."""
    if config.anchor(layer) is not None:
        return Attention(config, layer)
    if config.attention_of(layer).keys_are_values:
        return SharedAttention(config, layer)
    return OwnAttention(config, layer)


class Attention(nn.Module):
    """Attention of normed queries to the keys and values of an earlier layer."""

    def __init__(self, config: Gemma4Config, layer: int, *, num_kv_heads: int = 0) -> None:
        super().__init__()
        own, bias = config.attention_of(layer), config.attention_bias
        dims, q_dims = config.hidden_size, config.num_attention_heads * own.head_dim
        self.layer = layer
        self.rope = own.rope
        self.heads = HeadShape(config.num_attention_heads, num_kv_heads, own.head_dim)
        self.q_proj = nn.Linear(dims, q_dims, bias=bias)
        self.o_proj = nn.Linear(q_dims, dims, bias=bias)
        self.q_norm = RMSNorm(own.head_dim, eps=config.rms_norm_eps)

    def __call__(self, x: Normed, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]` for `x [T, hidden]`."""
        out = context.attend_projected(self.layer, self._projected(x), SCORING)
        return self.o_proj(out.flatten(1))

    def _projected(self, x: Normed) -> Projected:
        parts = (project(self.q_proj, x),)
        return Projected(parts, self.heads, q_norm=self.q_norm, rope=self.rope)


class SharedAttention(Attention, JointModule):
    """Attention in which one projection gives both keys and values."""

    JOINT = ("q_proj", "k_proj")

    def __init__(self, config: Gemma4Config, layer: int) -> None:
        own, eps = config.attention_of(layer), config.rms_norm_eps
        super().__init__(config, layer, num_kv_heads=own.num_kv_heads)
        kv_dims = own.num_kv_heads * own.head_dim
        self.k_proj = nn.Linear(config.hidden_size, kv_dims, bias=config.attention_bias)
        self.k_norm = RMSNorm(own.head_dim, eps=eps)
        self.v_norm = UnweightedRMSNorm(eps)

    def _projected(self, x: Normed) -> Projected:
        norms = (self.q_norm, self.k_norm, self.v_norm)
        return Projected(self._parts(x), self.heads, *norms, self.rope)

    def _parts(self, x: Normed) -> tuple[mx.array, ...]:
        q, k = self.project(x.computed())
        return q, k, k


class OwnAttention(SharedAttention):
    """Attention with separate keys and values; the norm of values has no weights."""

    JOINT = ("q_proj", "k_proj", "v_proj")

    def __init__(self, config: Gemma4Config, layer: int) -> None:
        super().__init__(config, layer)
        kv_dims = self.heads.kv_heads * self.heads.value_dim
        self.v_proj = nn.Linear(config.hidden_size, kv_dims, bias=config.attention_bias)

    def _parts(self, x: Normed) -> tuple[mx.array, ...]:
        return self.project_parts(x)
