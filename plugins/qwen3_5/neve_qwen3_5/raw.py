"""The keys of config.json that the family reads, typed, with the reference's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import epsilon, layers, share, size, tokens, vocabulary


@attrs.frozen(kw_only=True)
class RawOuter:
    """The keys outside the text model's section."""

    model_type: str = ""
    text_config: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = False


@attrs.frozen(kw_only=True)
class RawText:
    """The text model's keys that dense and sparse models share."""

    model_type: str = ""
    hidden_size: int = size()
    num_hidden_layers: int = layers()
    num_attention_heads: int = size()
    num_key_value_heads: int = size()
    head_dim: int = size(256)
    vocab_size: int = vocabulary()
    max_position_embeddings: int = tokens(32768)
    rms_norm_eps: float = epsilon(1e-6)
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    attn_output_gate: bool = True
    hidden_act: str = "silu"
    layer_types: list[str] | None = None
    full_attention_interval: int = size(4)
    linear_conv_kernel_dim: int = size(4, least=2)
    linear_key_head_dim: int = size()
    linear_value_head_dim: int = size()
    linear_num_key_heads: int = size()
    linear_num_value_heads: int = size()
    partial_rotary_factor: float = share(0.25)


@attrs.frozen(kw_only=True)
class RawDense(RawText):
    """The text model's keys in a dense checkpoint."""

    intermediate_size: int = size()


@attrs.frozen(kw_only=True)
class RawSparse(RawText):
    """The text model's keys in a checkpoint with experts."""

    num_experts: int = size()
    num_experts_per_tok: int = size()
    moe_intermediate_size: int = size()
    shared_expert_intermediate_size: int = size()
