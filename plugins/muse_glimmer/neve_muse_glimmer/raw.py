"""The keys of config.json that are read, typed, with the defaults of the model's makers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
from attrs import validators

from neve.checkpoint.config import read_config
from neve.contract.errors import ConfigError

T = TypeVar("T")

DEFAULT_LAYERS = 52
MAX_WINDOW = 2**32 - 1

_positive = validators.ge(1)
_above_zero: Callable[[Any, Any, float], None] = validators.gt(0.0)


@attrs.frozen(kw_only=True)
class RawOuter:
    """The keys around the text model's; those of vision are not looked at."""

    model_type: str = ""
    text_config: Mapping[str, Any] | None = None
    tie_word_embeddings: bool | None = None


@attrs.frozen(kw_only=True)
class RawText:
    """The text model's keys."""

    model_type: str = ""
    vocab_size: int = attrs.field(default=202_048, validator=_positive)
    hidden_size: int = attrs.field(default=6656, validator=_positive)
    intermediate_size: int = attrs.field(default=19_968, validator=_positive)
    num_hidden_layers: int | None = attrs.field(
        default=None, validator=validators.optional(_positive)
    )
    num_attention_heads: int = attrs.field(default=32, validator=_positive)
    num_key_value_heads: int = attrs.field(default=2, validator=_positive)
    head_dim: int = attrs.field(default=128, validator=_positive)
    hidden_activation: str = "silu"
    max_position_embeddings: int = attrs.field(default=131_072, validator=_positive)
    rms_norm_eps: float = 1e-5
    post_norm_eps: float = 1e-8
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    sliding_window: int = attrs.field(
        default=2048, validator=validators.and_(_positive, validators.le(MAX_WINDOW))
    )
    layer_types: tuple[str, ...] | None = None
    layer_rope_theta: tuple[float, ...] | None = None
    rope_theta: float | None = attrs.field(
        default=None, validator=validators.optional(_above_zero)
    )
    rope_parameters: Mapping[str, Any] | None = None
    rope_scaling: Mapping[str, Any] | None = None
    qk_scale_factor: float = 3.87
    output_multiplier: float = 0.19611613513818404
    final_logit_softcapping: float = attrs.field(default=20.0, validator=_above_zero)


@attrs.frozen(kw_only=True)
class RawRope:
    """What `rope_parameters` holds beside the rule."""

    rope_theta: float | None = attrs.field(
        default=None, validator=validators.optional(_above_zero)
    )


def read_nested(raw: Mapping[str, Any], cls: type[T], prefix: str) -> T:
    """Return the keys of `raw` that `cls` names, as `read_config` does.

    Args:
        raw: An object inside config.json.
        cls: What to read.
        prefix: Path of that object, with a trailing dot; empty for config.json itself.

    Raises:
        ConfigError: With the key's path from the top.
    """
    try:
        return read_config(raw, cls)
    except ConfigError as error:
        reason = str(error).partition(f"{error.key}: ")[2]
        raise ConfigError(prefix + error.key, reason) from error
