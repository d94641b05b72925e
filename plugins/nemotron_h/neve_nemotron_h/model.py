"""Nemotron-H: a stack of single-purpose layers, each with a norm and a residual."""

from __future__ import annotations

import mlx.nn as nn

from neve.contract.forward import ForwardContext
from neve.layers.attention import Attention
from neve.layers.decoder import DecoderModel, Trunk
from neve.layers.norms import RMSNorm
from neve.layers.stream import Stream

from .config import NemotronHConfig
from .mixers import MLP, Mamba, MoE, attention


def _mixer(config: NemotronHConfig, layer: int) -> nn.Module:
    dims, kind = config.hidden_size, config.layer_types[layer]
    if kind == "mamba" and config.mamba is not None:
        return Mamba(dims, config.mamba, layer, eps=config.norm_eps)
    if kind == "attention" and config.attention is not None:
        return attention(dims, config.attention, layer)
    if kind == "mlp" and config.intermediate_size is not None:
        return MLP(dims, config.intermediate_size, bias=config.mlp_bias)
    if kind == "moe" and config.experts is not None:
        return MoE(dims, config.experts, bias=config.mlp_bias)
    raise ValueError(f"layer {layer} is of type {kind}, but the config lacks its parameters")


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


class Backbone(Trunk):
    """Embedding, layers and final norm."""

    EMBEDDING = "embeddings"
    NORM = "norm_f"


class NemotronH(DecoderModel):
    """The model with its head."""

    TRUNK = "backbone"

    def __init__(self, config: NemotronHConfig) -> None:
        dims = config.hidden_size
        layers = [Block(config, layer) for layer in range(len(config.layer_types))]
        norm = RMSNorm(dims, eps=config.norm_eps)
        backbone = Backbone(config.vocab_size, dims, layers, norm)
        super().__init__(backbone, tied=config.tie_word_embeddings)
