"""The keys of config.json that the family reads, typed, with the reference's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import (
    count,
    epsilon,
    factor,
    layers,
    rope_base,
    share,
    size,
    tokens,
    vocabulary,
)


@attrs.frozen(kw_only=True)
class RawOuter:
    """The keys outside the text model's section."""

    text_config: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = True


@attrs.frozen(kw_only=True)
class RawText:
    """The text model's keys.

    Keys that every published config has are required here.
    """

    hidden_size: int = size()
    intermediate_size: int = size()
    num_hidden_layers: int = layers()
    num_attention_heads: int = size(8)
    num_key_value_heads: int = size(4)
    num_global_key_value_heads: int | None = size(None)
    head_dim: int = size(256, least=2)
    global_head_dim: int = size(512, least=2)
    per_layer_config: Mapping[str, Any] | None = None
    attention_k_eq_v: bool = False
    attention_bias: bool = False
    use_bidirectional_attention: str | None = None
    sliding_window: int = tokens(512)
    layer_types: list[str] | None = None
    rope_parameters: Mapping[str, Any] | None = None
    num_kv_shared_layers: int = count(0)
    use_double_wide_mlp: bool = False
    hidden_activation: str = "gelu_pytorch_tanh"
    enable_moe_block: bool = False
    hidden_size_per_layer_input: int = count(256)
    vocab_size: int = vocabulary(262_144)
    vocab_size_per_layer_input: int = vocabulary(262_144)
    max_position_embeddings: int = tokens(131_072)
    rms_norm_eps: float = epsilon(1e-6)
    final_logit_softcapping: float | None = factor(None)
    tie_word_embeddings: bool | None = None


@attrs.frozen(kw_only=True)
class RawExperts:
    """The experts' keys, read if `enable_moe_block` is set; defaults are the 26B model's."""

    num_experts: int = size(128)
    top_k_experts: int = size(8)
    moe_intermediate_size: int = size(704)


@attrs.frozen(kw_only=True)
class RawLayer:
    """The keys of one layer in `per_layer_config`."""

    head_dim: int | None = size(None, least=2)
    num_key_value_heads: int | None = size(None)


@attrs.frozen(kw_only=True)
class RawRope:
    """The keys of one layer type in `rope_parameters`."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = rope_base(None)
    partial_rotary_factor: float = share(1.0)
    factor: float = factor(1.0)
