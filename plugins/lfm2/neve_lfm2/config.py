"""LFM2's config.json: the keys that shape the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs

from neve.checkpoint.config import (
    Section,
    also_called,
    count,
    epsilon,
    factor,
    layers,
    merged_section,
    size,
    tokens,
    vocabulary,
)
from neve.contract.errors import UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.contract.limits import SIZE
from neve.layers.rope_config import read_rope

LayerType: TypeAlias = Literal["conv", "full_attention"]

_ROPE_BASE = 1_000_000.0


@attrs.frozen(kw_only=True)
class ExpertsConfig:
    """The experts of `lfm2_moe`.

    Attributes:
        num_dense_layers: The first layers, which have a dense MLP instead.
        intermediate_size: Width of one expert.
        use_expert_bias: Whether a bias enters the choice of experts.
        norm_topk_prob: Whether the weights of the chosen experts are normalised to sum to one.
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
        layer_types: Mixer of each layer.
        conv_length: Tokens that a convolution sees, the present token included.
        conv_bias: Whether convolutions and the projections around them have biases.
        rope: The rotary embedding of the attention layers.
        experts: The experts of `lfm2_moe`; None for a dense model.
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
class _Raw:
    """The keys that the family reads, with the reference's defaults.

    `block_ff_dim`, `theta` and `tie_embedding` are names of the first release. They win over
    the later names where both are present.
    """

    model_type: str
    hidden_size: int = size()
    num_hidden_layers: int = layers()
    num_attention_heads: int = size()
    num_key_value_heads: int = size(8)
    head_dim: int | None = size(None)
    vocab_size: int = vocabulary()
    max_position_embeddings: int = tokens(128_000)
    norm_eps: float = epsilon(1e-5)
    tie_word_embeddings: bool = attrs.field(default=True, metadata=also_called("tie_embedding"))
    layer_types: tuple[str, ...] | None = None
    full_attn_idxs: tuple[int, ...] | None = None
    conv_L_cache: int = size(3, least=2)  # noqa: N815
    conv_bias: bool = False


@attrs.frozen(kw_only=True)
class _RawDense:
    """The keys of `lfm2`'s MLP width, before its adjustment."""

    intermediate_size: int = size(aliases=["block_ff_dim"])
    block_auto_adjust_ff_dim: bool = True
    block_ffn_dim_multiplier: float = factor(1.0)
    block_multiple_of: int = size(256)


@attrs.frozen(kw_only=True)
class _RawExperts:
    """The keys of `lfm2_moe`'s MLPs and experts, whose widths are not adjusted."""

    intermediate_size: int = size()
    moe_intermediate_size: int = size()
    num_dense_layers: int = count(2)
    num_experts: int = size()
    num_experts_per_tok: int = size(4)
    use_expert_bias: bool = True
    norm_topk_prob: bool = True
    routed_scaling_factor: float = factor(1.0)


def _layer_types(raw: _Raw, text: Section) -> tuple[LayerType, ...]:
    named, listed = raw.layer_types, raw.full_attn_idxs
    if listed is not None and not all(0 <= i < raw.num_hidden_layers for i in listed):
        reason = f"must be indices of num_hidden_layers = {raw.num_hidden_layers} layers"
        raise text.error("full_attn_idxs", reason)
    from_list: tuple[LayerType, ...] = tuple(
        "full_attention" if i in (listed or ()) else "conv"
        for i in range(raw.num_hidden_layers)
    )
    if named is None:
        if listed is None:
            raise text.error("layer_types", "required key is missing (as is full_attn_idxs)")
        return from_list
    text.require_length(raw, "layer_types", "num_hidden_layers")
    unknown = sorted(set(named) - set(get_args(LayerType)))
    if unknown:
        raise UnsupportedModelError(f"layers of type {unknown[0]!r} are not supported")
    if listed is not None and named != from_list:
        raise text.error("full_attn_idxs", f"{list(listed)} contradicts layer_types")
    return cast("tuple[LayerType, ...]", named)


def _dense_width(text: Section) -> int:
    raw = text.read(_RawDense)
    if not raw.block_auto_adjust_ff_dim:
        return raw.intermediate_size
    width = int(raw.block_ffn_dim_multiplier * int(2 * raw.intermediate_size / 3))
    width = -(-width // raw.block_multiple_of) * raw.block_multiple_of
    if not SIZE.least <= width <= SIZE.most:
        reason = (
            f"makes {width} of an intermediate_size (or block_ff_dim) of "
            f"{raw.intermediate_size} and a block_multiple_of {raw.block_multiple_of}; the "
            f"width must be from {SIZE}"
        )
        raise text.error("block_ffn_dim_multiplier", reason)
    return width


def _experts(raw: _RawExperts) -> ExpertsConfig:
    return ExpertsConfig(
        num_dense_layers=raw.num_dense_layers,
        num_experts=raw.num_experts,
        num_experts_per_tok=raw.num_experts_per_tok,
        intermediate_size=raw.moe_intermediate_size,
        use_expert_bias=raw.use_expert_bias,
        norm_topk_prob=raw.norm_topk_prob,
        routed_scaling_factor=raw.routed_scaling_factor,
    )


def _mlps(raw: _Raw, text: Section) -> tuple[int, ExpertsConfig | None]:
    """Return the width of the dense MLPs, and the experts."""
    if raw.model_type == "lfm2":
        return _dense_width(text), None
    if raw.model_type != "lfm2_moe":
        raise UnsupportedModelError(f"model type {raw.model_type!r} is not of the LFM2 family")
    experts = text.read(_RawExperts)
    text.require_at_most(experts, "num_experts_per_tok", "num_experts")
    return experts.intermediate_size, _experts(experts)


def _rope(raw: _Raw, text: Section, head_dim: int) -> RopeSpec:
    rule = read_rope(
        text.keys,
        key=text.key,
        base=_ROPE_BASE,
        base_keys=("theta", "rope_theta"),
        layer_type="full_attention",  # some releases keep one rule for each layer type
    )
    return rule.spec(head_dim, max_context=raw.max_position_embeddings)


def parse(raw_config: Mapping[str, Any]) -> Lfm2Config:
    """Return the config of an LFM2 checkpoint.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range, or two keys
            contradict.
        UnsupportedModelError: The model type or a layer's type is unknown.
    """
    text = merged_section(raw_config)
    raw = text.read(_Raw)
    intermediate_size, experts = _mlps(raw, text)
    head_dim = text.head_dim(raw, raw.head_dim)
    return Lfm2Config(
        hidden_size=raw.hidden_size,
        intermediate_size=intermediate_size,
        layer_types=_layer_types(raw, text),
        num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=text.kv_heads(raw),
        head_dim=head_dim,
        conv_length=raw.conv_L_cache,
        conv_bias=raw.conv_bias,
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        norm_eps=raw.norm_eps,
        tie_word_embeddings=raw.tie_word_embeddings,
        rope=_rope(raw, text, head_dim),
        experts=experts,
    )
