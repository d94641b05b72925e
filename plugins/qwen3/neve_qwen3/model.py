"""Qwen3: grouped-query attention with normed queries and keys, and a gated MLP.

Parameters are named as in the checkpoint. All shapes are token-major: `T` tokens of a
step, whatever sequences they belong to.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, StepBatch
from neve.layers.joint import JointModule
from neve.layers.mlp import GatedMLP
from neve.layers.norms import RMSNorm

from .config import Qwen3Config


class Attention(JointModule):
    """Attention of one layer."""

    JOINT = ("q_proj", "k_proj", "v_proj")

    def __init__(self, config: Qwen3Config, layer: int) -> None:
        super().__init__()
        dims, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.layer = layer
        self.rope = config.rope
        self.head_dim = head_dim
        q_dims = config.num_attention_heads * head_dim
        kv_dims = config.num_key_value_heads * head_dim
        self.q_proj = nn.Linear(dims, q_dims, bias=bias)
        self.k_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.v_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.o_proj = nn.Linear(q_dims, dims, bias=bias)
        self.q_norm = RMSNorm(head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        num_tokens = x.shape[0]
        q, k, v = (y.reshape(num_tokens, -1, self.head_dim) for y in self.project(x))
        q = context.rope(self.q_norm(q), self.rope)
        k = context.rope(self.k_norm(k), self.rope)
        out = context.attend(self.layer, q, k, v, scale=self.head_dim**-0.5)
        return self.o_proj(out.reshape(num_tokens, -1))


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm and a residual."""

    def __init__(self, config: Qwen3Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        x = x + self.self_attn(self.input_layernorm(x), context)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i) for i in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        x = self.embed_tokens(batch.ids)
        for block in self.layers:
            x = block(x, context)
        return self.norm(x[batch.logit_rows])


class Qwen3(nn.Module):
    """The model with its head."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.model = Trunk(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return logits `[R, vocab_size]`."""
        hidden = self.model(batch, context)
        if "lm_head" in self:
            return self.lm_head(hidden)
        return self.model.embed_tokens.as_linear(hidden)
