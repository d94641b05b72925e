"""The hooks of the LFM2 family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    RecurrentState,
    StateTensor,
    layer_routes,
)
from neve.contract.hooks import hookimpl
from neve.contract.plan import FamilyInfo, OutputProtocol
from neve.contract.sidecar import SidecarPolicy, recurrent_policy

if TYPE_CHECKING:
    import mlx.nn as nn

    from neve.contract.weights import Weights

    from .config import Lfm2Config


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family."""
    return FamilyInfo("lfm2", 2, ["lfm2", "lfm2_moe"], "neve-lfm2")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> Lfm2Config:
    """Read config.json."""
    from .config import parse

    return parse(raw)


@hookimpl
def declare_cache_groups(config: Lfm2Config) -> CacheLayout:
    """Declare one group of full attention, and each convolution's last inputs as a state."""
    attention = FullAttention(config.num_key_value_heads, config.head_dim)
    inputs = StateTensor("conv", (config.conv_length - 1, config.hidden_size))
    convolution = RecurrentState([inputs])
    return layer_routes([convolution if t == "conv" else attention for t in config.layer_types])


@hookimpl
def build_model(config: Lfm2Config, weights: Weights) -> nn.Module:
    """Build the model and take its weights."""
    from .model import Lfm2
    from .weights import own_weights

    own = own_weights(config, weights)
    return Lfm2(config).with_weights(own, keep_float32=["expert_bias"])


@hookimpl
def build_sidecar_policy(config: Lfm2Config, dtype: str) -> SidecarPolicy | None:
    """Declare the convolutions' states for sidecars; None without convolutions."""
    layout = declare_cache_groups(config)
    return recurrent_policy("conv_state", layout, dtype) if layout.states else None


@hookimpl
def output_protocol(config: Lfm2Config) -> OutputProtocol:
    """State LFM2's marks."""
    return OutputProtocol(
        end_of_turn=("<|im_end|>",),
        reasoning=("<think>", "</think>"),
        tool_call=("<|tool_call_start|>", "<|tool_call_end|>"),
    )
