"""Nemotron-H: a stack of layers that each do one thing, behind a norm and a residual."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from neve.contract.forward import ForwardContext, StepBatch
from neve.layers.norms import RMSNorm
from neve.layers.stream import Stream

from .config import NemotronHConfig
from .mixers import MLP, Attention, Mamba, MoE


def _mixer(config: NemotronHConfig, layer: int) -> nn.Module:
    dims, kind = config.hidden_size, config.layer_types[layer]
    if kind == "mamba" and config.mamba is not None:
        return Mamba(dims, config.mamba, layer, eps=config.norm_eps)
    if kind == "attention" and config.attention is not None:
        return Attention(dims, config.attention, layer)
    if kind == "mlp" and config.intermediate_size is not None:
        return MLP(dims, config.intermediate_size, bias=config.mlp_bias)
    if kind == "moe" and config.experts is not None:
        return MoE(dims, config.experts, bias=config.mlp_bias)
    raise ValueError(f"layer {layer} is of type {kind}, which the config does not describe")


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: NemotronHConfig, layer: int) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.mixer = _mixer(config, layer)

    def __call__(self, stream: Stream, context: ForwardContext) -> Stream:
        """Return the stream `[T, hidden]` after the layer."""
        stream, normed = stream.norm(self.norm)
        if isinstance(self.mixer, Mamba | Attention):
            return stream.add(self.mixer(normed, context))
        if isinstance(self.mixer, MLP):
            return stream.add(self.mixer.delta(normed))
        return stream.add(self.mixer(normed.computed()))


class Backbone(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = [Block(config, i) for i in range(len(config.layer_types))]
        self.norm_f = RMSNorm(config.hidden_size, eps=config.norm_eps)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return the normed hidden states `[R, hidden]` of the rows that want logits."""
        stream = Stream(self.embeddings(batch.ids))
        for block in self.layers:
            stream = block(stream, context)
        return stream.norm_rows(self.norm_f, batch.logit_rows)


class NemotronH(nn.Module):
    """The model with its head."""

    def __init__(self, config: NemotronHConfig) -> None:
        super().__init__()
        self.backbone = Backbone(config)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return logits `[R, vocab_size]`."""
        hidden = self.backbone(batch, context)
        if "lm_head" in self:
            return self.lm_head(hidden)
        return self.backbone.embeddings.as_linear(hidden)
