"""Gemma 4's config.json: the keys that shape the computation of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from neve.checkpoint.config import Section, read_config, text_section
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec

from .heads import heads_by_type
from .layer_types import LayerType, read_layer_types, read_num_shared_layers
from .raw import RawExperts, RawOuter, RawText
from .rope import check_layer_types, layer_rope

_ACTIVATION = "gelu_pytorch_tanh"


@attrs.frozen(kw_only=True)
class AttentionConfig:
    """The attention of all layers of one type.

    Attributes:
        window: Positions that a token sees, its own included; None for all positions.
        keys_are_values: Whether values come from the keys' projection, with none of their own.
    """

    num_kv_heads: int
    head_dim: int
    window: int | None
    keys_are_values: bool
    rope: RopeSpec


@attrs.frozen(kw_only=True)
class ExpertsConfig:
    """The mixture of experts beside each layer's MLP.

    Attributes:
        num_chosen: Experts that compute a token.
        hidden_dims: Width of an expert.
    """

    num_experts: int
    num_chosen: int
    hidden_dims: int


@attrs.frozen(kw_only=True)
class Gemma4Config:
    """The text model of a Gemma 4 checkpoint.

    Attributes:
        layer_types: Type of attention of each layer.
        attention: The attention of each type of layer.
        num_shared_layers: The last layers, which read the keys and values of an earlier layer.
        double_wide: Whether the MLPs of the shared layers are twice as wide.
        experts: The mixture of experts; None for a dense model.
        per_layer_dims: Width of the embeddings that each layer has of its own, or 0.
        per_layer_vocab_size: Rows of the per-layer embedding table.
        softcap: Bound of the logits; None for no bound.
    """

    hidden_size: int
    intermediate_size: int
    layer_types: tuple[LayerType, ...]
    num_shared_layers: int
    double_wide: bool
    num_attention_heads: int
    attention_bias: bool
    attention: Mapping[LayerType, AttentionConfig]
    experts: ExpertsConfig | None
    per_layer_dims: int
    per_layer_vocab_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    softcap: float | None
    tie_word_embeddings: bool

    @property
    def num_hidden_layers(self) -> int:
        """Layers."""
        return len(self.layer_types)

    @property
    def num_own_layers(self) -> int:
        """Number of first layers, which keep keys and values of their own."""
        return self.num_hidden_layers - self.num_shared_layers

    def attention_of(self, layer: int) -> AttentionConfig:
        """Return the attention of a layer."""
        return self.attention[self.layer_types[layer]]

    def anchor(self, layer: int) -> int | None:
        """Return the layer whose keys and values `layer` reads; None for its own."""
        if layer < self.num_own_layers:
            return None
        own, layer_type = range(self.num_own_layers), self.layer_types[layer]
        return max(i for i in own if self.layer_types[i] == layer_type)

    def mlp_dims(self, layer: int) -> int:
        """Return the width of a layer's MLP."""
        wide = self.double_wide and layer >= self.num_own_layers
        return self.intermediate_size * (2 if wide else 1)


def parse(raw_config: Mapping[str, Any]) -> Gemma4Config:
    """Return the config of the text model of a Gemma 4 checkpoint.

    The text model's keys are in `text_config`, or at the top of a text-only checkpoint.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range, or two keys
            contradict.
        UnsupportedModelError: The variant is not implemented.
    """
    outer, text = read_config(raw_config, RawOuter), text_section(raw_config)
    if not text.has("hidden_size"):
        raise ConfigError("text_config.hidden_size", "required key is missing")
    raw = text.read(RawText)
    _refuse_variants(raw)
    layer_types = read_layer_types(raw, text)
    attention = _attention(raw, layer_types, text)
    tied = raw.tie_word_embeddings
    return Gemma4Config(
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        layer_types=layer_types,
        num_shared_layers=read_num_shared_layers(raw, layer_types, text),
        double_wide=raw.use_double_wide_mlp,
        num_attention_heads=raw.num_attention_heads,
        attention_bias=raw.attention_bias,
        attention=attention,
        experts=_experts(text) if raw.enable_moe_block else None,
        per_layer_dims=raw.hidden_size_per_layer_input,
        per_layer_vocab_size=_per_layer_vocab_size(raw, text),
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        rms_norm_eps=raw.rms_norm_eps,
        softcap=raw.final_logit_softcapping,
        tie_word_embeddings=outer.tie_word_embeddings if tied is None else tied,
    )


def _refuse_variants(raw: RawText) -> None:
    if raw.hidden_activation != _ACTIVATION:
        raise UnsupportedModelError(
            f"hidden_activation {raw.hidden_activation!r} is not supported, only {_ACTIVATION}"
        )
    # "vision" lets the tokens of an image see one another; text stays causal
    if raw.use_bidirectional_attention not in (None, "vision"):
        raise UnsupportedModelError(
            f"use_bidirectional_attention {raw.use_bidirectional_attention!r} is not "
            "supported: text is generated token by token"
        )


def _attention(
    raw: RawText, layer_types: Sequence[LayerType], text: Section
) -> Mapping[LayerType, AttentionConfig]:
    heads, ropes = heads_by_type(raw, layer_types, text), text.at("rope_parameters")
    check_layer_types(ropes)
    attention: dict[LayerType, AttentionConfig] = {}
    for layer_type, own in heads.items():
        full = layer_type == "full_attention"
        attention[layer_type] = AttentionConfig(
            num_kv_heads=own.num_kv_heads,
            head_dim=own.head_dim,
            window=None if full else raw.sliding_window,
            keys_are_values=full and raw.attention_k_eq_v,
            rope=layer_rope(ropes, layer_type, own.head_dim, raw.max_position_embeddings),
        )
    return attention


def _experts(text: Section) -> ExpertsConfig:
    raw = text.read(RawExperts)
    text.require_at_most(raw, "top_k_experts", "num_experts")
    return ExpertsConfig(
        num_experts=raw.num_experts,
        num_chosen=raw.top_k_experts,
        hidden_dims=raw.moe_intermediate_size,
    )


def _per_layer_vocab_size(raw: RawText, text: Section) -> int:
    if raw.hidden_size_per_layer_input:
        text.require_at_most(raw, "vocab_size", "vocab_size_per_layer_input")
    return raw.vocab_size_per_layer_input
