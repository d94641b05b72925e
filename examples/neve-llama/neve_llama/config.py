"""Llama's config.json, as far as it shapes the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import Section, epsilon, layers, size, tokens, vocabulary
from neve.contract.errors import UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.layers.rope_config import read_rope


@attrs.frozen(kw_only=True)
class LlamaConfig:
    """A dense Llama model."""

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
    mlp_bias: bool
    rope: RopeSpec


@attrs.frozen(kw_only=True)
class _Raw:
    """The keys that are read; a key without a default must be there."""

    hidden_size: int = size()
    num_hidden_layers: int = layers()
    intermediate_size: int = size()
    num_attention_heads: int = size()
    num_key_value_heads: int | None = size(None)
    head_dim: int | None = size(None)
    vocab_size: int = vocabulary()
    max_position_embeddings: int = tokens(2048)
    rms_norm_eps: float = epsilon(1e-6)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_act: str = "silu"
    rope_interleaved: bool = False


def parse(raw_config: Mapping[str, Any]) -> LlamaConfig:
    """Return the config of a Llama checkpoint.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range.
        UnsupportedModelError: An activation other than SiLU, or an unknown rope rule.
    """
    text = Section(raw_config)
    raw = text.read(_Raw)
    if raw.hidden_act != "silu":
        raise UnsupportedModelError(
            f"hidden_act {raw.hidden_act!r} is not supported, only silu"
        )
    head_dim = text.head_dim(raw, raw.head_dim)
    rope = read_rope(text.keys, base=10_000.0).spec(
        head_dim,
        max_context=raw.max_position_embeddings,
        interleaved=raw.rope_interleaved,
    )
    return LlamaConfig(
        hidden_size=raw.hidden_size,
        num_hidden_layers=raw.num_hidden_layers,
        intermediate_size=raw.intermediate_size,
        num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=text.kv_heads(raw),
        head_dim=head_dim,
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        rms_norm_eps=raw.rms_norm_eps,
        tie_word_embeddings=raw.tie_word_embeddings,
        attention_bias=raw.attention_bias,
        mlp_bias=raw.mlp_bias,
        rope=rope,
    )
