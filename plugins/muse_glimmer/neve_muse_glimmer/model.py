"""Muse-Glimmer: gated attention over a window or all positions, and an MLP, between norms.

Parameters are named as in published checkpoints. All shapes are token-major: `T` tokens of a
step, over all sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, Scoring
from neve.layers.attention import Attention
from neve.layers.decoder import DecoderModel, Trunk
from neve.layers.fusion import fused
from neve.layers.heads import HeadShape
from neve.layers.mlp import GatedMLP
from neve.layers.norms import RMSNorm, UnweightedRMSNorm, ZeroCentredRMSNorm
from neve.layers.stream import Stream

from .config import MuseGlimmerConfig


@fused
def _gated(x: mx.array, gate: mx.array) -> mx.array:
    return x * mx.sigmoid(gate)


class GatedAttention(Attention):
    """Attention of one layer with gated output; full attention has no positions."""

    JOINT = (*Attention.JOINT, "gate_proj")

    def __init__(self, config: MuseGlimmerConfig, layer: int) -> None:
        dims, head_dim = config.hidden_size, config.head_dim
        heads = HeadShape(config.num_attention_heads, config.num_key_value_heads, head_dim)
        norm = UnweightedRMSNorm(config.rms_norm_eps)
        super().__init__(
            dims,
            heads,
            layer,
            rope=config.ropes[layer],
            bias=config.attention_bias,
            q_norm=norm,
            k_norm=norm,
            # rotation is linear, so the factor on queries can move into the scores' scale
            scoring=Scoring(config.qk_scale_factor * head_dim**-0.5),
        )
        self.gate_proj = nn.Linear(dims, heads.num_heads * head_dim, bias=False)

    def gated(self, heads: mx.array, parts: Sequence[mx.array]) -> mx.array:
        """Return the gated heads, `[T, Hq * D]`."""
        # gates are the last part, or the last columns of a single joined part
        last = parts[-1]
        gate = last if len(parts) > 1 else last[:, self.heads.ends[-1] :]
        return _gated(heads.flatten(1), gate)


class Block(nn.Module):
    """One layer: attention, then an MLP, each between two norms and with a residual."""

    def __init__(self, config: MuseGlimmerConfig, layer: int) -> None:
        super().__init__()
        dims = config.hidden_size
        self.self_attn = GatedAttention(config, layer)
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


class NormedTrunk(Trunk):
    """A trunk whose embeddings are normed."""

    def embed(self, ids: mx.array) -> mx.array:
        """Return the normed embeddings `[T, hidden]` of `ids [T]`."""
        return mx.fast.rms_norm(self.embed_tokens(ids), None, self.norm.eps)


class MuseGlimmer(DecoderModel):
    """The model with its head, without the vision tower."""

    def __init__(self, config: MuseGlimmerConfig) -> None:
        dims = config.hidden_size
        layers = [Block(config, layer) for layer in range(len(config.ropes))]
        # unlike the layers' norms, the final norm has a weight that is not zero-centred
        norm = RMSNorm(dims, eps=config.rms_norm_eps)
        trunk = NormedTrunk(config.vocab_size, dims, layers, norm)
        super().__init__(trunk, tied=config.tie_word_embeddings, text_tower=True)
        self._multiplier = config.output_multiplier
        self._softcap = config.final_logit_softcapping

    def head(self, hidden: mx.array) -> mx.array:
        """Return logits `[R, vocab_size]`, float32, within the softcap."""
        # half precision would merge neighbouring logits near the cap
        scores = super().head(hidden).astype(mx.float32) * (self._multiplier / self._softcap)
        return self._softcap * mx.tanh(scores)
