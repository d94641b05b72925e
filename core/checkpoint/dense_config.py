"""config.json of dense decoders: the common keys, and the config derived from them."""

from __future__ import annotations

from typing import Any, Self

import attrs

from ..contract.forward import RopeSpec
from ..errors import UnsupportedModelError
from .config import Section, epsilon, layers, size, tokens, vocabulary


@attrs.frozen(kw_only=True)
class DenseKeys:
    """The common keys; a family derives a class to change defaults and to add keys."""

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
    hidden_act: str = "silu"


@attrs.frozen(kw_only=True)
class DenseConfig:
    """Config of a dense decoder; a family with more fields derives a class.

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

    @classmethod
    def of(cls, section: Section, keys: DenseKeys, rope: RopeSpec, **own: Any) -> Self:
        """Return the config from its keys.

        Args:
            section: Section of the keys, for errors.
            keys: The keys.
            rope: The rotary embedding, for heads of `section.head_dim(keys, keys.head_dim)`.
            **own: Fields that a derived class adds.

        Raises:
            ConfigError: Numbers of heads do not divide one another or the hidden size.
            UnsupportedModelError: An activation other than SiLU.
        """
        if keys.hidden_act != "silu":
            raise UnsupportedModelError(
                f"hidden_act {keys.hidden_act!r} is not supported, only silu"
            )
        derived = {
            "num_key_value_heads": section.kv_heads(keys),
            "head_dim": section.head_dim(keys, keys.head_dim),
            "rope": rope,
        }
        names = {field.name for field in attrs.fields(DenseConfig)} - derived.keys()
        return cls(**{name: getattr(keys, name) for name in names}, **derived, **own)
