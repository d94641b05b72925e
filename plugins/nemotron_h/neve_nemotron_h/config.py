"""Nemotron-H's config.json: the keys that shape the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs

from neve.checkpoint.config import Section, merged_section
from neve.contract.errors import UnsupportedModelError

from .raw import (
    Raw,
    RawAttention,
    RawDense,
    RawExperts,
    RawMamba,
    RawMLP,
    read_limit,
)

LayerType: TypeAlias = Literal["mamba", "attention", "mlp", "moe"]

_LETTERS: Mapping[str, LayerType] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES: Mapping[str, LayerType] = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


@attrs.frozen(kw_only=True)
class AttentionConfig:
    """The attention layers, which have no positions.

    Attributes:
        head_dim: Width of a head; `num_heads * head_dim` need not be the hidden size.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    bias: bool


@attrs.frozen(kw_only=True)
class MambaConfig:
    """The Mamba-2 layers.

    Attributes:
        num_groups: Groups of heads that share `B` and `C`, and whose outputs are normed
            together.
        state_dim: Width of `B` and `C`.
        kernel: Tokens that the convolution sees, the present token included.
        chunk: Tokens of a chunk of the scan.
        bias: Whether the layer's input and output projections have biases.
        limit: Least and greatest time step.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    kernel: int
    chunk: int
    bias: bool
    conv_bias: bool
    limit: tuple[float, float]

    @property
    def inner_dim(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: inputs, `B` and `C`."""
        return self.inner_dim + 2 * self.num_groups * self.state_dim


@attrs.frozen(kw_only=True)
class ExpertsConfig:
    """The layers with experts.

    Attributes:
        hidden_dims: Width of one expert.
        latent_dims: Width of an expert's input and output; None for the hidden size.
        shared_hidden_dims: Width of the shared expert, which computes every token; None for
            no shared expert.
        renormalise: Whether the weights of the chosen experts are normalised to sum to one.
        scale: Factor on the weights.
        num_groups: Groups of consecutive experts.
        num_chosen_groups: Groups from which a token's experts are chosen.
    """

    num_experts: int
    num_chosen: int
    hidden_dims: int
    latent_dims: int | None
    shared_hidden_dims: int | None
    renormalise: bool
    scale: float
    num_groups: int
    num_chosen_groups: int


@attrs.frozen(kw_only=True)
class NemotronHConfig:
    """A Nemotron-H model. Parts that no layer uses are None.

    Attributes:
        layer_types: Type of each layer.
        mlp_bias: Whether dense MLPs, the shared expert and latent projections have biases.
        intermediate_size: Width of the dense MLPs.
    """

    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    tie_word_embeddings: bool
    layer_types: tuple[LayerType, ...]
    attention: AttentionConfig | None
    mamba: MambaConfig | None
    mlp_bias: bool
    intermediate_size: int | None
    experts: ExpertsConfig | None

    @property
    def num_hidden_layers(self) -> int:
        """Layers."""
        return len(self.layer_types)


def _refuse(raw: Mapping[str, Any], supported: Mapping[str, object]) -> None:
    for key, value in supported.items():
        if raw[key] != value:
            raise UnsupportedModelError(
                f"Nemotron-H with {key} {raw[key]!r} is not supported, only {value!r}"
            )


def _kinds(
    text: Section, key: str, listed: Any, known: Mapping[str, LayerType]
) -> tuple[LayerType, ...]:
    if not isinstance(listed, str | list | tuple) or not listed:
        raise text.error(key, f"must list the layers, got {listed!r}")
    names: list[Any] = list(listed)
    unknown = [name for name in names if not isinstance(name, str) or name not in known]
    if unknown:
        raise UnsupportedModelError(
            f"{key}: layers of type {unknown[0]!r} are not supported (known: "
            f"{', '.join(known)})"
        )
    return tuple(known[name] for name in names)


def _layer_types(raw: Raw, text: Section) -> tuple[LayerType, ...]:
    letters, names = raw.hybrid_override_pattern, raw.layers_block_type
    said: list[tuple[LayerType, ...]] = []
    if letters is not None:
        said.append(_kinds(text, "hybrid_override_pattern", letters, _LETTERS))
    if names is not None:
        said.append(_kinds(text, "layers_block_type", names, _NAMES))
    if not said:
        reason = "required key is missing (as is layers_block_type)"
        raise text.error("hybrid_override_pattern", reason)
    if said[0] != said[-1]:
        raise text.error("layers_block_type", f"contradicts the pattern {letters!r}")
    return said[0]


def _attention(text: Section) -> AttentionConfig:
    raw = text.read(RawAttention)
    _refuse(attrs.asdict(raw), {"sliding_window": None})
    return AttentionConfig(
        num_heads=raw.num_attention_heads,
        num_kv_heads=text.kv_heads(raw),
        head_dim=raw.head_dim or raw.attention_head_dim or 128,
        bias=raw.attention_bias,
    )


def _mamba(text: Section) -> MambaConfig:
    raw = text.read(RawMamba)
    _refuse(attrs.asdict(raw), {"mamba_hidden_act": "silu"})
    text.require_divisor(raw, "n_groups", "mamba_num_heads")
    return MambaConfig(
        num_heads=raw.mamba_num_heads,
        head_dim=raw.mamba_head_dim,
        num_groups=raw.n_groups,
        state_dim=raw.ssm_state_size,
        kernel=raw.conv_kernel,
        chunk=raw.chunk_size,
        bias=raw.use_bias,
        conv_bias=raw.use_conv_bias,
        limit=read_limit(raw.time_step_limit, text.key("time_step_limit")),
    )


def _check_groups(raw: RawExperts, text: Section) -> None:
    """Check the groups of experts, unless a token may choose from all groups."""
    text.require_at_most(raw, "topk_group", "n_group")
    if raw.topk_group == raw.n_group:
        return
    text.require_divisor(raw, "n_group", "n_routed_experts")
    group_size = raw.n_routed_experts // raw.n_group
    if group_size < 2:
        raise text.error("n_group", "must leave two experts or more in a group, not one")
    if raw.num_experts_per_tok > raw.topk_group * group_size:
        most = f"{raw.topk_group} groups of {group_size}"
        reason = f"must be at most the experts of topk_group groups, {most}"
        raise text.error("num_experts_per_tok", f"{reason}, got {raw.num_experts_per_tok}")


def _experts(text: Section) -> ExpertsConfig:
    raw = text.read(RawExperts)
    text.require_at_most(raw, "num_experts_per_tok", "n_routed_experts")
    _check_groups(raw, text)
    if raw.n_shared_experts > 1:
        # implementations disagree: the width is one expert's, or all shared experts' together
        raise UnsupportedModelError("more than one n_shared_experts is not supported")
    shared = raw.moe_shared_expert_intermediate_size if raw.n_shared_experts else None
    if raw.n_shared_experts and shared is None:
        raise text.error("moe_shared_expert_intermediate_size", "required key is missing")
    return ExpertsConfig(
        num_experts=raw.n_routed_experts,
        num_chosen=raw.num_experts_per_tok,
        hidden_dims=raw.moe_intermediate_size,
        latent_dims=raw.moe_latent_size,
        shared_hidden_dims=shared,
        renormalise=raw.norm_topk_prob,
        scale=raw.routed_scaling_factor,
        num_groups=raw.n_group,
        num_chosen_groups=raw.topk_group,
    )


def _mlp_bias(text: Section) -> bool:
    raw = text.read(RawMLP)
    _refuse(attrs.asdict(raw), {"mlp_hidden_act": "relu2"})
    return raw.mlp_bias


def parse(raw_config: Mapping[str, Any]) -> NemotronHConfig:
    """Return the config of a Nemotron-H checkpoint.

    The number of layers is the length of the layer types; `num_hidden_layers` is ignored, and
    so are keys of rotary embeddings, as attention has no positions.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range, or two keys
            contradict.
        UnsupportedModelError: A layer's type is unknown, an activation occurs in no published
            model, or the config has sliding windows or a float32 residual stream.
    """
    text = merged_section(raw_config)
    raw = text.read(Raw)
    _refuse(attrs.asdict(raw), {"model_type": "nemotron_h", "residual_in_fp32": False})
    kinds = _layer_types(raw, text)
    return NemotronHConfig(
        hidden_size=raw.hidden_size,
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        norm_eps=raw.layer_norm_epsilon,
        tie_word_embeddings=raw.tie_word_embeddings,
        layer_types=kinds,
        attention=_attention(text) if "attention" in kinds else None,
        mamba=_mamba(text) if "mamba" in kinds else None,
        mlp_bias=_mlp_bias(text) if {"mlp", "moe"} & set(kinds) else False,
        intermediate_size=(text.read(RawDense).intermediate_size if "mlp" in kinds else None),
        experts=_experts(text) if "moe" in kinds else None,
    )
