"""Muse-Glimmer's config.json: the keys that shape the computation of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import Section, read_config, text_section
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec

from .layers import layer_ropes
from .raw import RawOuter, RawText

MODEL_TYPES = ("muse_glimmer", "muse_glimmer_text")


@attrs.frozen(kw_only=True)
class MuseGlimmerConfig:
    """The text model of a Muse-Glimmer checkpoint.

    Attributes:
        ropes: Rotary embedding of each layer; None for full attention without positions. A
            layer with a rotary embedding sees a window.
        sliding_window: Positions that a token sees in a layer with a window.
        rms_norm_eps: Epsilon of the norms before attention and MLP, of queries and keys, of
            embeddings, and of the last norm.
        post_norm_eps: Epsilon of the norms behind attention and MLP.
        qk_scale_factor: Factor on the normed queries.
        output_multiplier: Factor on the head's output, before the softcap.
        attention_bias: Whether the projections of attention, except its gate, have biases.
    """

    hidden_size: int
    intermediate_size: int
    ropes: tuple[RopeSpec | None, ...]
    sliding_window: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    post_norm_eps: float
    qk_scale_factor: float
    output_multiplier: float
    final_logit_softcapping: float
    attention_bias: bool
    tie_word_embeddings: bool

    @property
    def num_hidden_layers(self) -> int:
        """Layers."""
        return len(self.ropes)


def parse(raw_config: Mapping[str, Any]) -> MuseGlimmerConfig:
    """Return the config of the text model of a Muse-Glimmer checkpoint.

    The text model's keys are in `text_config`, or at the top of a text-only checkpoint.

    Raises:
        ConfigError: A key is of the wrong type or out of range, or two keys contradict.
        UnsupportedModelError: A layer type, an activation or a rotary rule is not
            implemented.
    """
    outer, text = read_config(raw_config, RawOuter), _text_part(raw_config)
    raw = text.read(RawText)
    _refuse_variants(raw)
    return MuseGlimmerConfig(
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        ropes=layer_ropes(raw, text),
        sliding_window=raw.sliding_window,
        num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=text.kv_heads(raw),
        head_dim=raw.head_dim,
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        rms_norm_eps=raw.rms_norm_eps,
        post_norm_eps=raw.post_norm_eps,
        qk_scale_factor=raw.qk_scale_factor,
        output_multiplier=raw.output_multiplier,
        final_logit_softcapping=raw.final_logit_softcapping,
        attention_bias=raw.attention_bias,
        tie_word_embeddings=_tied(outer, raw),
    )


def _text_part(raw_config: Mapping[str, Any]) -> Section:
    """Return the text model's section.

    All its keys have defaults, so a section without keys would pass for the 30B model.
    """
    text = text_section(raw_config)
    if not text.prefix and not text.has("hidden_size"):
        reason = "required key is missing, and the text model's keys are not at the top either"
        raise ConfigError("text_config", reason)
    return text


def _refuse_variants(raw: RawText) -> None:
    if raw.model_type and raw.model_type not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise UnsupportedModelError(
            f"model type {raw.model_type!r} is not of the Muse-Glimmer family (known: {known})"
        )
    if raw.hidden_activation != "silu":
        raise UnsupportedModelError(
            f"hidden_activation {raw.hidden_activation!r} is not supported, only silu"
        )


def _tied(outer: RawOuter, text: RawText) -> bool:
    """Return whether the head is the embedding; either section may have the flag."""
    stated = {outer.tie_word_embeddings, text.tie_word_embeddings} - {None}
    if len(stated) > 1:
        reason = (
            f"is {outer.tie_word_embeddings} and text_config says {text.tie_word_embeddings}; "
            "they must be equal"
        )
        raise ConfigError("tie_word_embeddings", reason)
    return True in stated
