"""Muse-Glimmer: gated attention over a window or over all, and an MLP, between norms.

Parameters are named as in the makers' checkpoints. All shapes are token-major: `T` tokens of
a step, whatever sequences they belong to.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, Scoring, StepBatch
from neve.layers.fusion import fused
from neve.layers.heads import HeadShape, Projected
from neve.layers.joint import JointModule
from neve.layers.mlp import GatedMLP
from neve.layers.norms import RMSNorm, UnweightedRMSNorm, ZeroCentredRMSNorm
from neve.layers.stream import Normed, Stream

from .config import MuseGlimmerConfig


@fused
def _gated(x: mx.array, gate: mx.array) -> mx.array:
    return x * mx.sigmoid(gate)


class Attention(JointModule):
    """Attention of one layer, its output gated; a layer of full attention has no positions."""

    JOINT = ("q_proj", "k_proj", "v_proj", "gate_proj")

    def __init__(self, config: MuseGlimmerConfig, layer: int) -> None:
        super().__init__()
        dims, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.layer = layer
        self.rope = config.ropes[layer]
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.heads = HeadShape(num_heads, num_kv_heads, head_dim)
        self.norm = UnweightedRMSNorm(config.rms_norm_eps)
        self.q_proj = nn.Linear(dims, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(dims, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(dims, num_kv_heads * head_dim, bias=bias)
        self.gate_proj = nn.Linear(dims, num_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, dims, bias=bias)
        # a rotation is linear, so the factor on queries may wait for the scores
        self.scoring = Scoring(config.qk_scale_factor * head_dim**-0.5)

    def __call__(self, x: Normed, context: ForwardContext) -> mx.array:
        """Return `[T, hidden]` for `x [T, hidden]`."""
        parts = self.project_parts(x)
        # gates are the last part, or the last columns of the only one
        last = parts[-1]
        gate = last if len(parts) > 1 else last[:, self.heads.ends[-1] :]
        projected = Projected(
            parts[:3], self.heads, q_norm=self.norm, k_norm=self.norm, rope=self.rope
        )
        out = context.attend_projected(self.layer, projected, self.scoring)
        return self.o_proj(_gated(out.flatten(1), gate))


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

    def __call__(self, stream: Stream, context: ForwardContext) -> Stream:
        """Return the stream `[T, hidden]` after the layer."""
        stream, normed = stream.norm(self.input_layernorm)
        attended = self.self_attn(normed, context)
        stream = stream.add(attended, after=self.post_attention_layernorm)
        stream, normed = stream.norm(self.pre_feedforward_layernorm)
        return stream.add(self.mlp(normed), after=self.post_feedforward_layernorm)


class Trunk(nn.Module):
    """Normed embedding, layers and final norm, whose weight is not zero-centred."""

    def __init__(self, config: MuseGlimmerConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i) for i in range(len(config.ropes))]
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._eps = config.rms_norm_eps

    def embed(self, ids: mx.array) -> mx.array:
        """Return the normed embeddings `[T, hidden]` of `ids [T]`."""
        return mx.fast.rms_norm(self.embed_tokens(ids), None, self._eps)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        stream = Stream(self.embed(batch.ids))
        for block in self.layers:
            stream = block(stream, context)
        return stream.norm_rows(self.norm, batch.logit_rows)


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
