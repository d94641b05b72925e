"""The keys of config.json that are read, typed, with the defaults of the model's makers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs
from attrs import validators

from neve.checkpoint.config import read_config
from neve.contract.errors import ConfigError

T = TypeVar("T")

_positive = validators.ge(1)
_head_dim = validators.ge(2)


@attrs.frozen(kw_only=True)
class RawOuter:
    """The keys around the text model's."""

    text_config: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = True


@attrs.frozen(kw_only=True)
class RawText:
    """The text model's keys.

    What no published config leaves out has no default here.
    """

    hidden_size: int = attrs.field(validator=_positive)
    intermediate_size: int = attrs.field(validator=_positive)
    num_hidden_layers: int = attrs.field(validator=_positive)
    num_attention_heads: int = attrs.field(default=8, validator=_positive)
    num_key_value_heads: int = attrs.field(default=4, validator=_positive)
    num_global_key_value_heads: int | None = attrs.field(
        default=None, validator=validators.optional(_positive)
    )
    head_dim: int = attrs.field(default=256, validator=_head_dim)
    global_head_dim: int = attrs.field(default=512, validator=_head_dim)
    per_layer_config: Mapping[str, Any] | None = None
    attention_k_eq_v: bool = False
    attention_bias: bool = False
    use_bidirectional_attention: str | None = None
    sliding_window: int = attrs.field(default=512, validator=_positive)
    layer_types: list[str] | None = None
    rope_parameters: Mapping[str, Any] | None = None
    num_kv_shared_layers: int = attrs.field(default=0, validator=validators.ge(0))
    use_double_wide_mlp: bool = False
    hidden_activation: str = "gelu_pytorch_tanh"
    enable_moe_block: bool = False
    hidden_size_per_layer_input: int = attrs.field(default=256, validator=validators.ge(0))
    vocab_size: int = attrs.field(default=262_144, validator=_positive)
    vocab_size_per_layer_input: int = attrs.field(default=262_144, validator=_positive)
    max_position_embeddings: int = attrs.field(default=131_072, validator=_positive)
    rms_norm_eps: float = 1e-6
    final_logit_softcapping: float | None = attrs.field(
        default=None, validator=validators.optional(validators.gt(0))
    )
    tie_word_embeddings: bool | None = None


@attrs.frozen(kw_only=True)
class RawExperts:
    """The experts' keys, where `enable_moe_block` is on; the defaults are the 26B model's."""

    num_experts: int = attrs.field(default=128, validator=_positive)
    top_k_experts: int = attrs.field(default=8, validator=_positive)
    moe_intermediate_size: int = attrs.field(default=704, validator=_positive)


@attrs.frozen(kw_only=True)
class RawLayer:
    """What `per_layer_config` says of one layer."""

    head_dim: int | None = attrs.field(default=None, validator=validators.optional(_head_dim))
    num_key_value_heads: int | None = attrs.field(
        default=None, validator=validators.optional(_positive)
    )


@attrs.frozen(kw_only=True)
class RawRope:
    """What `rope_parameters` says of one type of layer."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = attrs.field(
        default=None, validator=validators.optional(validators.gt(0))
    )
    partial_rotary_factor: float = attrs.field(
        default=1.0, validator=validators.and_(validators.gt(0), validators.le(1))
    )
    factor: float = attrs.field(default=1.0, validator=validators.gt(0))


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


def read_object(raw: Any, key: str) -> Mapping[str, Any]:
    """Return `raw`, which must be an object.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(raw, Mapping):
        raise ConfigError(key, f"must be an object, got {raw!r}")
    return raw
