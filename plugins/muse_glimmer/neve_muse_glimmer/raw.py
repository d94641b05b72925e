"""The keys of config.json that the family reads, typed, with the reference's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import epsilon, factor, layers, size, tokens, vocabulary

DEFAULT_LAYERS = 52


@attrs.frozen(kw_only=True)
class RawOuter:
    """The keys outside the text model's section; keys of vision are ignored."""

    model_type: str = ""
    text_config: Mapping[str, Any] | None = None
    tie_word_embeddings: bool | None = None


@attrs.frozen(kw_only=True)
class RawText:
    """The text model's keys."""

    model_type: str = ""
    vocab_size: int = vocabulary(202_048)
    hidden_size: int = size(6656)
    intermediate_size: int = size(19_968)
    num_hidden_layers: int | None = layers(None)
    num_attention_heads: int = size(32)
    num_key_value_heads: int = size(2)
    head_dim: int = size(128)
    hidden_activation: str = "silu"
    max_position_embeddings: int = tokens(131_072)
    rms_norm_eps: float = epsilon(1e-5)
    post_norm_eps: float = epsilon(1e-8)
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    sliding_window: int = tokens(2048)
    layer_types: tuple[str, ...] | None = None
    layer_rope_theta: tuple[float, ...] | None = None
    qk_scale_factor: float = factor(3.87)
    output_multiplier: float = factor(0.19611613513818404)
    final_logit_softcapping: float = factor(20.0)
