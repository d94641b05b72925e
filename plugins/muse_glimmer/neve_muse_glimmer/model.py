"""Muse-Glimmer: gated attention over a window or over all, and an MLP, between norms.

Parameters are named as in the makers' checkpoints. All shapes are token-major: `T` tokens of
a step, whatever sequences they belong to.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, StepBatch
from neve.layers.mlp import GatedMLP
from neve.layers.norms import ZeroCentredRMSNorm

from .config import MuseGlimmerConfig


class Attention(nn.Module):
    """Attention of one layer, its output gated; a layer of full attention has no positions."""

    def __init__(self, config: MuseGlimmerConfig, layer: int) -> None:
        super().__init__()
        dims, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.layer = layer
        self.rope = config.ropes[layer]
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = head_dim
        self.q_proj = nn.Linear(dims, self.num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(dims, self.num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(dims, self.num_kv_heads * head_dim, bias=bias)
        self.gate_proj = nn.Linear(dims, self.num_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(self.num_heads * head_dim, dims, bias=bias)
        self._eps = config.rms_norm_eps
        # a rotation is linear, so the factor on queries may wait for the scores
        self._scale = config.qk_scale_factor * head_dim**-0.5

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        num_tokens = x.shape[0]
        q = self.q_proj(x).reshape(num_tokens, self.num_heads, self.head_dim)
        k = self.k_proj(x).reshape(num_tokens, self.num_kv_heads, self.head_dim)
        v = self.v_proj(x).reshape(num_tokens, self.num_kv_heads, self.head_dim)
        q, k = (mx.fast.rms_norm(heads, None, self._eps) for heads in (q, k))
        if self.rope is not None:
            q, k = (context.rope(heads, self.rope) for heads in (q, k))
        out = context.attend(self.layer, q, k, v, scale=self._scale).reshape(num_tokens, -1)
        return self.o_proj(out * mx.sigmoid(self.gate_proj(x)))


class Block(nn.Module):
    """One layer: attention, then an MLP, each between two norms and beside a residual."""

    def __init__(self, config: MuseGlimmerConfig, layer: int) -> None:
        super().__init__()
        dims = config.hidden_size
        self.self_attn = Attention(config, layer)
        self.mlp = GatedMLP(dims, config.intermediate_size)
        self.input_layernorm = ZeroCentredRMSNorm(dims, eps=config.rms_norm_eps)
        self.post_attention_layernorm = ZeroCentredRMSNorm(dims, eps=config.post_norm_eps)
        self.pre_feedforward_layernorm = ZeroCentredRMSNorm(dims, eps=config.rms_norm_eps)
        self.post_feedforward_layernorm = ZeroCentredRMSNorm(dims, eps=config.post_norm_eps)

    def __call__(self, x: mx.array, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]`."""
        attended = self.self_attn(self.input_layernorm(x), context)
        x = x + self.post_attention_layernorm(attended)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Trunk(nn.Module):
    """Normed embedding, layers and final norm, whose weight is not zero-centred."""

    def __init__(self, config: MuseGlimmerConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i) for i in range(len(config.ropes))]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._eps = config.rms_norm_eps

    def embed(self, ids: mx.array) -> mx.array:
        """Return the normed embeddings `[T, hidden]` of `ids [T]`."""
        return mx.fast.rms_norm(self.embed_tokens(ids), None, self._eps)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        x = self.embed(batch.ids)
        for block in self.layers:
            x = block(x, context)
        return self.norm(x[batch.logit_rows])


class Towers(nn.Module):
    """What checkpoints call `model`: here the text model alone, without the vision tower."""

    def __init__(self, config: MuseGlimmerConfig) -> None:
        super().__init__()
        self.language_model = Trunk(config)


class MuseGlimmer(nn.Module):
    """The model with its head."""

    def __init__(self, config: MuseGlimmerConfig) -> None:
        super().__init__()
        self.model = Towers(config)
        self._multiplier = config.output_multiplier
        self._softcap = config.final_logit_softcapping
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return logits `[R, vocab_size]`, float32, none beyond the softcap."""
        text = self.model.language_model
        hidden = text(batch, context)
        head = self.lm_head if "lm_head" in self else text.embed_tokens.as_linear
        # near the cap neighbouring logits would be one in half precision
        scores = head(hidden).astype(mx.float32) * (self._multiplier / self._softcap)
        return self._softcap * mx.tanh(scores)
