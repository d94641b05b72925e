"""Qwen3.5's config.json: the keys that shape the computation of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import Section, read_config, text_section
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.layers.rope_config import read_rope

from .raw import RawDense, RawOuter, RawSparse, RawText

_LAYER_TYPES = ("linear_attention", "full_attention")


@attrs.frozen(kw_only=True)
class DeltaConfig:
    """The gated delta net of a layer.

    Attributes:
        kernel: Tokens that the convolution spans.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@attrs.frozen(kw_only=True)
class ExpertsConfig:
    """The mixture of experts of a layer.

    Attributes:
        num_chosen: Experts that compute a token, beside the shared one.
        hidden_dims: Width of an expert.
        shared_hidden_dims: Width of the shared expert.
    """

    num_experts: int
    num_chosen: int
    hidden_dims: int
    shared_hidden_dims: int


@attrs.frozen(kw_only=True)
class Qwen35Config:
    """The text model of a Qwen3.5 checkpoint.

    Attributes:
        full_attention: For each layer, True for full attention, False for a gated delta net.
        mlp: Width of a dense model's MLP, or the experts.
        rope: The rotary embedding of full attention.
    """

    hidden_size: int
    full_attention: tuple[bool, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    attention_bias: bool
    mlp: int | ExpertsConfig
    delta: DeltaConfig
    rope: RopeSpec

    @property
    def num_hidden_layers(self) -> int:
        """Layers."""
        return len(self.full_attention)


def parse(raw_config: Mapping[str, Any]) -> Qwen35Config:
    """Return the config of the text model of a Qwen3.5 checkpoint.

    The text model's keys are in `text_config`, or at the top of a text-only checkpoint.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range.
        UnsupportedModelError: A layer type, an activation or a rotary rule is not
            implemented.
    """
    outer, text = read_config(raw_config, RawOuter), text_section(raw_config)
    if not text.has("hidden_size"):
        raise ConfigError("text_config.hidden_size", "required key is missing")
    types = (outer.model_type, str(text.keys.get("model_type")))
    sparse = any(name.endswith(("_moe", "_moe_text")) for name in types)
    raw = text.read(RawSparse if sparse else RawDense)
    _refuse_variants(raw)
    tied = raw.tie_word_embeddings
    return Qwen35Config(
        hidden_size=raw.hidden_size,
        full_attention=_full_attention(raw, text),
        num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=text.kv_heads(raw),
        head_dim=raw.head_dim,
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        rms_norm_eps=raw.rms_norm_eps,
        tie_word_embeddings=outer.tie_word_embeddings if tied is None else tied,
        attention_bias=raw.attention_bias,
        mlp=_mlp(raw, text),
        delta=_delta(raw, text),
        rope=_rope(raw, text),
    )


def _refuse_variants(raw: RawText) -> None:
    if raw.hidden_act != "silu":
        raise UnsupportedModelError(
            f"hidden_act {raw.hidden_act!r} is not supported, only silu"
        )
    if not raw.attn_output_gate:
        raise UnsupportedModelError("Qwen3.5 without attn_output_gate is not supported")


def _full_attention(raw: RawText, text: Section) -> tuple[bool, ...]:
    if raw.layer_types is None:
        every = raw.full_attention_interval
        return tuple((i + 1) % every == 0 for i in range(raw.num_hidden_layers))
    unknown = sorted(set(raw.layer_types) - set(_LAYER_TYPES))
    if unknown:
        known = ", ".join(_LAYER_TYPES)
        raise UnsupportedModelError(
            f"layer type {unknown[0]!r} is not supported (known: {known})"
        )
    text.require_length(raw, "layer_types", "num_hidden_layers")
    return tuple(name == "full_attention" for name in raw.layer_types)


def _delta(raw: RawText, text: Section) -> DeltaConfig:
    text.require_divisor(raw, "linear_num_key_heads", "linear_num_value_heads")
    return DeltaConfig(
        key_heads=raw.linear_num_key_heads,
        value_heads=raw.linear_num_value_heads,
        key_dim=raw.linear_key_head_dim,
        value_dim=raw.linear_value_head_dim,
        kernel=raw.linear_conv_kernel_dim,
    )


def _mlp(raw: RawDense | RawSparse, text: Section) -> int | ExpertsConfig:
    if isinstance(raw, RawDense):
        return raw.intermediate_size
    text.require_at_most(raw, "num_experts_per_tok", "num_experts")
    return ExpertsConfig(
        num_experts=raw.num_experts,
        num_chosen=raw.num_experts_per_tok,
        hidden_dims=raw.moe_intermediate_size,
        shared_hidden_dims=raw.shared_expert_intermediate_size,
    )


def _rope(raw: RawText, text: Section) -> RopeSpec:
    rule = read_rope(text.keys, key=text.key, base=None)
    share = rule.share(raw.partial_rotary_factor)
    dims = int(raw.head_dim * share)
    if dims % 2 or not dims:
        reason = f"must leave an even number of head_dim = {raw.head_dim} elements, got {share}"
        raise text.error("partial_rotary_factor", reason)
    # the axes of multi-axis positions are equal for text
    keys = {k: "default" if v == "mrope" else v for k, v in rule.keys.items()}
    return attrs.evolve(rule, keys=keys).spec(dims, max_context=raw.max_position_embeddings)
