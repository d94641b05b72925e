"""Qwen3's config.json: the keys that shape the computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import Section, tokens
from neve.checkpoint.dense_config import DenseConfig, DenseKeys
from neve.contract.errors import UnsupportedModelError
from neve.layers.rope_config import read_rope

_ROPE_BASE = 1_000_000.0


@attrs.frozen(kw_only=True)
class Qwen3Config(DenseConfig):
    """A dense Qwen3 model."""


@attrs.frozen(kw_only=True)
class _Keys(DenseKeys):
    """The keys that the family reads, with the defaults of the released configs."""

    max_position_embeddings: int = tokens(32768)
    use_sliding_window: bool = False


def parse(raw: Mapping[str, Any]) -> Qwen3Config:
    """Return the config of a Qwen3 checkpoint.

    Raises:
        ConfigError: A key is missing, of the wrong type or out of range.
        UnsupportedModelError: The config has sliding windows, or an activation other than SiLU.
    """
    section = Section(raw)
    keys = section.read(_Keys)
    if keys.use_sliding_window:
        raise UnsupportedModelError("Qwen3 with use_sliding_window is not supported")
    rope = read_rope(section.keys, base=_ROPE_BASE).spec(
        section.head_dim(keys, keys.head_dim), max_context=keys.max_position_embeddings
    )
    return Qwen3Config.of(section, keys, rope)
