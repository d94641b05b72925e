"""Llama: grouped-query attention and a gated MLP.

Parameters are named as in Hugging Face checkpoints. All shapes are token-major: `T` tokens
of a step, whatever sequences they belong to.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, StepBatch
from neve.layers.mlp import GatedMLP

from .config import LlamaConfig


class Attention(nn.Module):
    """Attention of one layer."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.rope = config.rope
        self.head_dim = config.head_dim
        dims, bias = config.hidden_size, config.attention_bias
        q_dims = config.num_attention_heads * config.head_dim
        kv_dims = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(dims, q_dims, bias=bias)
        self.k_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.v_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.o_proj = nn.Linear(q_dims, dims, bias=bias)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        q, k, v = (
            project(x).reshape(x.shape[0], -1, self.head_dim)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = context.rope(q, self.rope), context.rope(k, self.rope)
        out = context.attend(self.layer, q, k, v, scale=self.head_dim**-0.5)
        return self.o_proj(out.reshape(x.shape[0], -1))


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm and a residual."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        x = x + self.self_attn(self.input_layernorm(x), context)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i) for i in range(config.num_hidden_layers)]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        x = self.embed_tokens(batch.ids)
        for block in self.layers:
            x = block(x, context)
        return self.norm(x[batch.logit_rows])


class Llama(nn.Module):
    """The model with its head."""

    def __init__(self, config: LlamaConfig) -> None:
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
