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


@attrs.frozen(kw_only=True)
class RawOuter:
    """The keys around the text model's."""

    model_type: str = ""
    text_config: Mapping[str, Any] | None = None
    tie_word_embeddings: bool = False


@attrs.frozen(kw_only=True)
class RawText:
    """The text model's keys that dense models and those with experts share."""

    model_type: str = ""
    hidden_size: int = attrs.field(validator=_positive)
    num_hidden_layers: int = attrs.field(validator=_positive)
    num_attention_heads: int = attrs.field(validator=_positive)
    num_key_value_heads: int = attrs.field(validator=_positive)
    head_dim: int = attrs.field(default=256, validator=_positive)
    vocab_size: int = attrs.field(validator=_positive)
    max_position_embeddings: int = attrs.field(default=32768, validator=_positive)
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    attn_output_gate: bool = True
    hidden_act: str = "silu"
    layer_types: list[str] | None = None
    full_attention_interval: int = attrs.field(default=4, validator=_positive)
    linear_conv_kernel_dim: int = attrs.field(default=4, validator=validators.ge(2))
    linear_key_head_dim: int = attrs.field(validator=_positive)
    linear_value_head_dim: int = attrs.field(validator=_positive)
    linear_num_key_heads: int = attrs.field(validator=_positive)
    linear_num_value_heads: int = attrs.field(validator=_positive)
    partial_rotary_factor: float | None = None
    rope_theta: float | None = None
    rope_parameters: Mapping[str, Any] | None = None
    rope_scaling: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class RawDense(RawText):
    """The text model's keys in a dense checkpoint."""

    intermediate_size: int = attrs.field(validator=_positive)


@attrs.frozen(kw_only=True)
class RawSparse(RawText):
    """The text model's keys in a checkpoint with experts."""

    num_experts: int = attrs.field(validator=_positive)
    num_experts_per_tok: int = attrs.field(validator=_positive)
    moe_intermediate_size: int = attrs.field(validator=_positive)
    shared_expert_intermediate_size: int = attrs.field(validator=_positive)


@attrs.frozen(kw_only=True)
class RawRope:
    """What `rope_parameters` holds beside the rule.

    The sections of multi-axis positions are not looked at: the axes of text are equal.
    """

    rope_theta: float | None = None
    partial_rotary_factor: float | None = None


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
