"""Qwen3's config.json, as far as it shapes the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import validators

from neve.checkpoint.config import read_config
from neve.contract.errors import UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.layers.rope import rope_spec

_positive = validators.ge(1)


@attrs.frozen(kw_only=True)
class Qwen3Config:
    """A dense Qwen3 model.

    Attributes:
        head_dim: Width of a head; `num_attention_heads * head_dim` need not be `hidden_size`.
        rope: The rotary embedding of every layer.
    """

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    attention_bias: bool
    rope: RopeSpec


@attrs.frozen(kw_only=True)
class _RopeParameters:
    """Where newer configs keep the base."""

    rope_theta: float | None = None


@attrs.frozen(kw_only=True)
class _Raw:
    """The keys that are read, with the defaults of the released configs."""

    hidden_size: int = attrs.field(validator=_positive)
    num_hidden_layers: int = attrs.field(validator=_positive)
    intermediate_size: int = attrs.field(validator=_positive)
    num_attention_heads: int = attrs.field(validator=_positive)
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int = attrs.field(validator=_positive)
    max_position_embeddings: int = attrs.field(default=32768, validator=_positive)
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    hidden_act: str = "silu"
    use_sliding_window: bool = False
    rope_theta: float = 1_000_000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None


def _refuse_variants(raw: _Raw) -> None:
    if raw.hidden_act != "silu":
        raise UnsupportedModelError(
            f"hidden_act {raw.hidden_act!r} is not supported, only silu"
        )
    if raw.use_sliding_window:
        raise UnsupportedModelError("Qwen3 with use_sliding_window is not supported")


def parse(raw_config: Mapping[str, Any]) -> Qwen3Config:
    """Return the config of a Qwen3 checkpoint.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range.
        UnsupportedModelError: Sliding windows, or an activation other than SiLU.
    """
    raw = read_config(raw_config, _Raw)
    _refuse_variants(raw)
    head_dim = raw.head_dim or raw.hidden_size // raw.num_attention_heads
    rope = raw.rope_parameters or raw.rope_scaling
    rope_theta = read_config(raw.rope_parameters or {}, _RopeParameters).rope_theta
    theta = rope_theta or raw.rope_theta
    return Qwen3Config(
        hidden_size=raw.hidden_size,
        num_hidden_layers=raw.num_hidden_layers,
        intermediate_size=raw.intermediate_size,
        num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=raw.num_key_value_heads or raw.num_attention_heads,
        head_dim=head_dim,
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        rms_norm_eps=raw.rms_norm_eps,
        tie_word_embeddings=raw.tie_word_embeddings,
        attention_bias=raw.attention_bias,
        rope=rope_spec(head_dim, theta, rope, max_context=raw.max_position_embeddings),
    )
