"""The hooks of the Qwen3.5 family."""

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

    from .config import Qwen35Config


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family; text-only checkpoints have model types of their own."""
    types = ["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"]
    return FamilyInfo("qwen3_5", 2, types, "neve-qwen3-5")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> Qwen35Config:
    """Read config.json."""
    from .config import parse

    return parse(raw)


@hookimpl
def declare_cache_groups(config: Qwen35Config) -> CacheLayout:
    """Declare full attention for some layers, and a gated delta net's state for the others."""
    delta = config.delta
    attention = FullAttention(config.num_key_value_heads, config.head_dim)
    state = RecurrentState(
        (
            StateTensor("conv", (delta.kernel - 1, delta.conv_dim)),
            StateTensor(
                "recurrent", (delta.value_heads, delta.value_dim, delta.key_dim), "float32"
            ),
        )
    )
    return layer_routes([attention if full else state for full in config.full_attention])


@hookimpl
def build_model(config: Qwen35Config, weights: Weights) -> nn.Module:
    """Build the text model and take its weights."""
    from .weights import build

    return build(config, weights)


@hookimpl
def build_sidecar_policy(config: Qwen35Config, dtype: str) -> SidecarPolicy | None:
    """Declare the gated delta nets' states for sidecars; None without such layers."""
    layout = declare_cache_groups(config)
    return recurrent_policy("gdn_state", layout, dtype) if layout.states else None


@hookimpl
def output_protocol(config: Qwen35Config) -> OutputProtocol:
    """State Qwen3.5's marks."""
    return OutputProtocol(
        end_of_turn=("<|im_end|>",),
        reasoning=("<think>", "</think>"),
        tool_call=("<tool_call>", "</tool_call>"),
    )
