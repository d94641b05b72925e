"""The keys of config.json that the family reads, typed, with the reference's defaults.

Where a key has two names, the alias wins over the field's name, as in the reference.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from neve.checkpoint.config import also_called, count, epsilon, factor, size, tokens, vocabulary
from neve.contract.errors import ConfigError

MAX_STEP = 1e6
"""Bound on the least time step: products with a state stay within float32."""


@attrs.frozen(kw_only=True)
class Raw:
    """The keys of every model."""

    model_type: str
    hidden_size: int = size()
    vocab_size: int = vocabulary()
    max_position_embeddings: int = tokens(4096)
    layer_norm_epsilon: float = epsilon(1e-5)
    tie_word_embeddings: bool = False
    hybrid_override_pattern: Any = None
    layers_block_type: Any = attrs.field(default=None, metadata=also_called("layer_types"))
    residual_in_fp32: bool = False


@attrs.frozen(kw_only=True)
class RawAttention:
    """The keys of attention layers."""

    num_attention_heads: int = size()
    num_key_value_heads: int = size(8)
    head_dim: int | None = size(None)
    attention_head_dim: int | None = size(None)
    attention_bias: bool = False
    sliding_window: int | None = tokens(None)


@attrs.frozen(kw_only=True)
class RawMamba:
    """The keys of Mamba-2 layers. `use_bias` is the reference's key for projection biases."""

    mamba_num_heads: int = size()
    mamba_head_dim: int = size(64)
    ssm_state_size: int = size(128)
    n_groups: int = size(8, aliases=["mamba_n_groups"])
    conv_kernel: int = size(4, least=2, aliases=["mamba_d_conv"])
    chunk_size: int = size(128, aliases=["mamba_chunk_size"])
    use_conv_bias: bool = attrs.field(default=True, metadata=also_called("mamba_conv_bias"))
    use_bias: bool = False
    mamba_hidden_act: str = "silu"
    time_step_limit: Any = attrs.field(default=None, metadata=also_called("mamba_dt_limit"))


@attrs.frozen(kw_only=True)
class RawMLP:
    """The keys of MLPs, dense or shared."""

    mlp_bias: bool = False
    mlp_hidden_act: str = "relu2"


@attrs.frozen(kw_only=True)
class RawDense:
    """The key of dense MLPs."""

    intermediate_size: int = size()


@attrs.frozen(kw_only=True)
class RawExperts:
    """The keys of experts."""

    n_routed_experts: int = size(aliases=["num_local_experts"])
    num_experts_per_tok: int = size()
    moe_intermediate_size: int = size()
    moe_latent_size: int | None = size(None)
    n_shared_experts: int = count(1)
    moe_shared_expert_intermediate_size: int | None = size(None)
    norm_topk_prob: bool = True
    routed_scaling_factor: float = factor(1.0)
    n_group: int = size(1)
    topk_group: int = size(1)


def read_limit(raw: Any, key: str) -> tuple[float, float]:
    """Return `time_step_limit`, which allows any step by default.

    An absent upper limit is a bare `Infinity`, the string or tagged object for infinity in
    strict JSON, or null.

    Args:
        raw: Value in config.json.
        key: Path of the key, for the error.

    Raises:
        ConfigError: The value is no pair of ascending numbers.
    """
    if raw is None:
        return 0.0, float("inf")
    pair = [_number(value) for value in raw] if isinstance(raw, Sequence) else []
    right = len(pair) == 2 and 0 <= pair[0] <= min(pair[1], MAX_STEP)
    if isinstance(raw, str) or not right:
        reason = f"must be two ascending numbers, the first from 0 to {MAX_STEP:g}, got {raw!r}"
        raise ConfigError(key, reason)
    return pair[0], pair[1]


def _number(value: Any) -> float:
    """Return a limit as a number; NaN for any other value."""
    if isinstance(value, Mapping):
        value = value.get("__float__")
    if value is None or value in ("Infinity", float("inf")):
        return float("inf")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and value <= sys.float_info.max else float("nan")
