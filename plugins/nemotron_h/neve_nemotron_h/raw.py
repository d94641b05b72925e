"""The keys of config.json that are read, typed, with the defaults of the model's makers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from attrs import validators

from neve.contract.errors import ConfigError

_positive = validators.ge(1)

LEGACY_NAMES: Mapping[str, str] = {
    "mamba_n_groups": "n_groups",
    "mamba_d_conv": "conv_kernel",
    "mamba_dt_limit": "time_step_limit",
    "mamba_conv_bias": "use_conv_bias",
    "mamba_chunk_size": "chunk_size",
    "layer_types": "layers_block_type",
    "num_local_experts": "n_routed_experts",
}
"""Other name of a key -> its name. Where both stand, the other one wins, as with the makers."""


@attrs.frozen(kw_only=True)
class Raw:
    """What every model has."""

    model_type: str
    hidden_size: int = attrs.field(validator=_positive)
    vocab_size: int = attrs.field(validator=_positive)
    max_position_embeddings: int = attrs.field(default=4096, validator=_positive)
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = False
    hybrid_override_pattern: Any = None
    layers_block_type: Any = None
    residual_in_fp32: bool = False


@attrs.frozen(kw_only=True)
class RawAttention:
    """The keys of attention layers."""

    num_attention_heads: int = attrs.field(validator=_positive)
    num_key_value_heads: int = attrs.field(default=8, validator=_positive)
    head_dim: int | None = attrs.field(default=None, validator=validators.optional(_positive))
    attention_head_dim: int | None = attrs.field(
        default=None, validator=validators.optional(_positive)
    )
    attention_bias: bool = False
    sliding_window: int | None = None


@attrs.frozen(kw_only=True)
class RawMamba:
    """The keys of Mamba-2 layers. `use_bias` is the one that the makers' code looks at."""

    mamba_num_heads: int = attrs.field(validator=_positive)
    mamba_head_dim: int = attrs.field(default=64, validator=_positive)
    ssm_state_size: int = attrs.field(default=128, validator=_positive)
    n_groups: int = attrs.field(default=8, validator=_positive)
    conv_kernel: int = attrs.field(default=4, validator=validators.ge(2))
    chunk_size: int = attrs.field(default=128, validator=_positive)
    use_conv_bias: bool = True
    use_bias: bool = False
    mamba_hidden_act: str = "silu"
    time_step_limit: Any = None


@attrs.frozen(kw_only=True)
class RawMLP:
    """The keys of MLPs, dense or shared."""

    mlp_bias: bool = False
    mlp_hidden_act: str = "relu2"


@attrs.frozen(kw_only=True)
class RawDense:
    """The key of dense MLPs."""

    intermediate_size: int = attrs.field(validator=_positive)


@attrs.frozen(kw_only=True)
class RawExperts:
    """The keys of experts."""

    n_routed_experts: int = attrs.field(validator=_positive)
    num_experts_per_tok: int = attrs.field(validator=_positive)
    moe_intermediate_size: int = attrs.field(validator=_positive)
    moe_latent_size: int | None = attrs.field(
        default=None, validator=validators.optional(_positive)
    )
    n_shared_experts: int = attrs.field(default=1, validator=validators.ge(0))
    moe_shared_expert_intermediate_size: int | None = attrs.field(
        default=None, validator=validators.optional(_positive)
    )
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    n_group: int = attrs.field(default=1, validator=_positive)
    topk_group: int = attrs.field(default=1, validator=_positive)


def text_part(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of the text model under their names; those of a `text_config` win."""
    nested = raw.get("text_config")
    if nested is not None and not isinstance(nested, Mapping):
        raise ConfigError("text_config", f"must be an object, got {nested!r}")
    text: dict[str, Any] = {}
    for part in (raw, nested or {}):
        given = {key: value for key, value in part.items() if value is not None}
        text |= given
        text |= {name: given[key] for key, name in LEGACY_NAMES.items() if key in given}
    return text


def read_limit(raw: Any) -> tuple[float, float]:
    """Return `time_step_limit`, by default any step.

    No upper limit is a bare `Infinity`, the string or the tagged object that stand for it in
    strict JSON, or null.

    Raises:
        ConfigError: It is no pair of ascending numbers.
    """
    if raw is None:
        return 0.0, float("inf")
    pair = [_number(value) for value in raw] if isinstance(raw, Sequence) else []
    if isinstance(raw, str) or len(pair) != 2 or not 0 <= pair[0] <= pair[1]:
        reason = f"must be two ascending numbers, none below zero, got {raw!r}"
        raise ConfigError("time_step_limit", reason)
    return pair[0], pair[1]


def _number(value: Any) -> float:
    """Return a limit as a number; NaN for what is none."""
    if isinstance(value, Mapping):
        value = value.get("__float__")
    if value is None or value == "Infinity":
        return float("inf")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return float("nan")
    return float(value)
