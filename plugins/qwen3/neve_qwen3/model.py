"""Qwen3: grouped-query attention with normed queries and keys, and a gated MLP.

Parameters are named as in the checkpoint. All shapes are token-major: `T` tokens of a
step, whatever sequences they belong to.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, Scoring, StepBatch
from neve.layers.heads import HeadShape, Projected
from neve.layers.joint import JointModule
from neve.layers.mlp import GatedMLP
from neve.layers.norms import RMSNorm
from neve.layers.stream import Delta, Normed, Stream

from .config import Qwen3Config


class Attention(JointModule):
    """Attention of one layer."""

    JOINT = ("q_proj", "k_proj", "v_proj")

    def __init__(self, config: Qwen3Config, layer: int) -> None:
        super().__init__()
        dims, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.layer = layer
        self.rope = config.rope
        self.scoring = Scoring(head_dim**-0.5)
        self.heads = HeadShape(config.num_attention_heads, config.num_key_value_heads, head_dim)
        q_dims = config.num_attention_heads * head_dim
        kv_dims = config.num_key_value_heads * head_dim
        self.q_proj = nn.Linear(dims, q_dims, bias=bias)
        self.k_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.v_proj = nn.Linear(dims, kv_dims, bias=bias)
        self.o_proj = nn.Linear(q_dims, dims, bias=bias)
        self.q_norm = RMSNorm(head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, eps=config.rms_norm_eps)

    def __call__(self, x: Normed, context: ForwardContext) -> Delta:
        """Return what is added to the stream, for `x [T, hidden]`."""
        projected = Projected(
            self.project_parts(x),
            self.heads,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            rope=self.rope,
        )
        out = context.attend_projected(self.layer, projected, self.scoring)
        return Delta(self.o_proj, out)


class Block(nn.Module):
    """One layer: attention and MLP, each behind a norm and a residual."""

    def __init__(self, config: Qwen3Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, stream: Stream, context: ForwardContext) -> Stream:
        """Return the stream `[T, hidden]` after the layer."""
        stream, normed = stream.norm(self.input_layernorm)
        stream = stream.add(self.self_attn(normed, context))
        stream, normed = stream.norm(self.post_attention_layernorm)
        return stream.add(self.mlp.delta(normed))


class Trunk(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i) for i in range(config.num_hidden_layers)]
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        stream = Stream(self.embed_tokens(batch.ids))
        for block in self.layers:
            stream = block(stream, context)
        return stream.norm_rows(self.norm, batch.logit_rows)


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
