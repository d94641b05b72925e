"""Llama's config.json: the keys that shape the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import Section
from neve.checkpoint.dense_config import DenseConfig, DenseKeys
from neve.layers.rope_config import read_rope


@attrs.frozen(kw_only=True)
class LlamaConfig(DenseConfig):
    """A dense Llama model."""

    mlp_bias: bool


@attrs.frozen(kw_only=True)
class _Keys(DenseKeys):
    """The keys that the family reads; a key without a default is required."""

    mlp_bias: bool = False
    rope_interleaved: bool = False


def parse(raw: Mapping[str, Any]) -> LlamaConfig:
    """Return the config of a Llama checkpoint.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range.
        UnsupportedModelError: The activation is not SiLU, or the rope rule is unknown.
    """
    section = Section(raw)
    keys = section.read(_Keys)
    rope = read_rope(section.keys, base=10_000.0).spec(
        section.head_dim(keys, keys.head_dim),
        max_context=keys.max_position_embeddings,
        interleaved=keys.rope_interleaved,
    )
    return LlamaConfig.of(section, keys, rope, mlp_bias=keys.mlp_bias)
