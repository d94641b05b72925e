"""LFM2's config.json, as far as it shapes the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs
from attrs import validators

from neve.checkpoint.config import read_config
from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.layers.rope import rope_spec

LayerType: TypeAlias = Literal["conv", "full_attention"]

_positive = validators.ge(1)


@attrs.frozen(kw_only=True)
class ExpertsConfig:
    """The experts of `lfm2_moe`.

    Attributes:
        num_dense_layers: The first layers, which have a dense MLP instead.
        intermediate_size: Width of one expert.
        use_expert_bias: Whether a bias enters the choice of experts.
        norm_topk_prob: Whether the weights of the chosen experts are made to sum to one.
    """

    num_dense_layers: int
    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    use_expert_bias: bool
    norm_topk_prob: bool
    routed_scaling_factor: float


@attrs.frozen(kw_only=True)
class Lfm2Config:
    """An LFM2 model.

    Attributes:
        intermediate_size: Width of the dense MLPs, adjusted.
        layer_types: What each layer mixes tokens with.
        conv_length: Tokens that a convolution sees, its own among them.
        conv_bias: Whether convolutions and the projections around them have biases.
        rope: The rotary embedding of the attention layers.
        experts: None for a dense model.
    """

    hidden_size: int
    intermediate_size: int
    layer_types: tuple[LayerType, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    conv_length: int
    conv_bias: bool
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    tie_word_embeddings: bool
    rope: RopeSpec
    experts: ExpertsConfig | None

    @property
    def num_hidden_layers(self) -> int:
        """Layers."""
        return len(self.layer_types)


@attrs.frozen(kw_only=True)
class _Rope:
    """Where newer configs keep the base."""

    rope_theta: float | None = None


@attrs.frozen(kw_only=True)
class _Raw:
    """The keys that are read, with the defaults of the makers' config class.

    `block_ff_dim`, `theta` and `tie_embedding` are the names of the first release. Where they
    stand beside the later names, they win.
    """

    model_type: str
    hidden_size: int = attrs.field(validator=_positive)
    num_hidden_layers: int = attrs.field(validator=_positive)
    num_attention_heads: int = attrs.field(validator=_positive)
    num_key_value_heads: int = attrs.field(default=8, validator=_positive)
    head_dim: int | None = attrs.field(default=None, validator=validators.optional(_positive))
    vocab_size: int = attrs.field(validator=_positive)
    max_position_embeddings: int = attrs.field(default=128_000, validator=_positive)
    norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    tie_embedding: bool | None = None
    layer_types: tuple[str, ...] | None = None
    full_attn_idxs: tuple[int, ...] | None = None
    conv_L_cache: int = attrs.field(default=3, validator=validators.ge(2))  # noqa: N815
    conv_bias: bool = False
    rope_theta: float = 1_000_000.0
    theta: float | None = None
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class _RawDense:
    """The width of the MLPs of `lfm2`, before it is adjusted."""

    intermediate_size: int | None = attrs.field(
        default=None, validator=validators.optional(_positive)
    )
    block_ff_dim: int | None = attrs.field(
        default=None, validator=validators.optional(_positive)
    )
    block_auto_adjust_ff_dim: bool = True
    block_ffn_dim_multiplier: float = 1.0
    block_multiple_of: int = attrs.field(default=256, validator=_positive)


@attrs.frozen(kw_only=True)
class _RawExperts:
    """The MLPs and experts of `lfm2_moe`; here no width is adjusted."""

    intermediate_size: int = attrs.field(validator=_positive)
    moe_intermediate_size: int = attrs.field(validator=_positive)
    num_dense_layers: int = attrs.field(default=2, validator=validators.ge(0))
    num_experts: int = attrs.field(validator=_positive)
    num_experts_per_tok: int = attrs.field(default=4, validator=_positive)
    use_expert_bias: bool = True
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0


def _text_part(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys of the text model; those of a nested `text_config` win."""
    nested = raw.get("text_config")
    if nested is None:
        return raw
    if not isinstance(nested, Mapping):
        raise ConfigError("text_config", f"must be an object, got {nested!r}")
    return {**raw, **{key: value for key, value in nested.items() if value is not None}}


def _layer_types(raw: _Raw) -> tuple[LayerType, ...]:
    named, listed = raw.layer_types, raw.full_attn_idxs
    if listed is not None and not all(0 <= i < raw.num_hidden_layers for i in listed):
        reason = f"must be indices of {raw.num_hidden_layers} layers, got {list(listed)}"
        raise ConfigError("full_attn_idxs", reason)
    from_list: tuple[LayerType, ...] = tuple(
        "full_attention" if i in (listed or ()) else "conv"
        for i in range(raw.num_hidden_layers)
    )
    if named is None:
        if listed is None:
            raise ConfigError("layer_types", "required key is missing (as is full_attn_idxs)")
        return from_list
    if len(named) != raw.num_hidden_layers:
        reason = f"must name {raw.num_hidden_layers} layers, got {len(named)}"
        raise ConfigError("layer_types", reason)
    unknown = sorted(set(named) - set(get_args(LayerType)))
    if unknown:
        raise UnsupportedModelError(f"layers of type {unknown[0]!r} are not supported")
    if listed is not None and named != from_list:
        raise ConfigError("full_attn_idxs", f"{list(listed)} contradicts layer_types")
    return cast("tuple[LayerType, ...]", named)


def _dense_width(raw: _RawDense) -> int:
    width = raw.block_ff_dim or raw.intermediate_size
    if width is None:
        raise ConfigError("intermediate_size", "required key is missing")
    if not raw.block_auto_adjust_ff_dim:
        return width
    width = int(raw.block_ffn_dim_multiplier * int(2 * width / 3))
    return -(-width // raw.block_multiple_of) * raw.block_multiple_of


def _experts(raw: _RawExperts) -> ExpertsConfig:
    if raw.num_experts_per_tok > raw.num_experts:
        reason = f"must be at most num_experts, {raw.num_experts}"
        raise ConfigError("num_experts_per_tok", reason)
    return ExpertsConfig(
        num_dense_layers=raw.num_dense_layers,
        num_experts=raw.num_experts,
        num_experts_per_tok=raw.num_experts_per_tok,
        intermediate_size=raw.moe_intermediate_size,
        use_expert_bias=raw.use_expert_bias,
        norm_topk_prob=raw.norm_topk_prob,
        routed_scaling_factor=raw.routed_scaling_factor,
    )


def _mlps(raw: _Raw, text: Mapping[str, Any]) -> tuple[int, ExpertsConfig | None]:
    """Return the width of the dense MLPs, and the experts."""
    if raw.model_type == "lfm2":
        return _dense_width(read_config(text, _RawDense)), None
    if raw.model_type != "lfm2_moe":
        raise UnsupportedModelError(f"model type {raw.model_type!r} is not of the LFM2 family")
    experts = read_config(text, _RawExperts)
    return experts.intermediate_size, _experts(experts)


def _rope(raw: _Raw, head_dim: int) -> RopeSpec:
    parameters = raw.rope_parameters or {}
    # for a while they were kept for each type of layer
    by_type = parameters.get("full_attention")
    parameters = by_type if isinstance(by_type, Mapping) else parameters
    theta = read_config(parameters, _Rope).rope_theta or raw.theta or raw.rope_theta
    scaling = parameters or raw.rope_scaling
    return rope_spec(head_dim, theta, scaling, max_context=raw.max_position_embeddings)


def _head_dim(raw: _Raw) -> int:
    heads, kv_heads = raw.num_attention_heads, raw.num_key_value_heads
    if heads % kv_heads:
        reason = f"must divide num_attention_heads, {heads}, got {kv_heads}"
        raise ConfigError("num_key_value_heads", reason)
    return raw.head_dim or raw.hidden_size // heads


def parse(raw_config: Mapping[str, Any]) -> Lfm2Config:
    """Return the config of an LFM2 checkpoint.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range, or two contradict.
        UnsupportedModelError: Another model type, or a layer of an unknown type.
    """
    text = _text_part(raw_config)
    raw = read_config(text, _Raw)
    intermediate_size, experts = _mlps(raw, text)
    head_dim = _head_dim(raw)
    tied = raw.tie_word_embeddings if raw.tie_embedding is None else raw.tie_embedding
    return Lfm2Config(
        hidden_size=raw.hidden_size,
        intermediate_size=intermediate_size,
        layer_types=_layer_types(raw),
        num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=raw.num_key_value_heads,
        head_dim=head_dim,
        conv_length=raw.conv_L_cache,
        conv_bias=raw.conv_bias,
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        norm_eps=raw.norm_eps,
        tie_word_embeddings=tied,
        rope=_rope(raw, head_dim),
        experts=experts,
    )
