"""The hooks of the Gemma 4 family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neve.contract.cache_spec import (
    Alias,
    AttentionSpec,
    CacheLayout,
    FullAttention,
    SlidingWindow,
    layer_routes,
)
from neve.contract.hooks import hookimpl
from neve.contract.plan import FamilyInfo, OutputProtocol

if TYPE_CHECKING:
    import mlx.nn as nn

    from neve.contract.weights import Weights

    from .config import Gemma4Config


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family; text-only checkpoints have a model type of their own."""
    return FamilyInfo("gemma4", 2, ["gemma4", "gemma4_text"], "neve-gemma4")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> Gemma4Config:
    """Read config.json."""
    from .config import parse

    return parse(raw)


@hookimpl
def declare_cache_groups(config: Gemma4Config) -> CacheLayout:
    """Declare one group of sliding and one of full layers; shared layers are aliases."""
    return layer_routes([_layer_spec(config, i) for i in range(config.num_hidden_layers)])


def _layer_spec(config: Gemma4Config, layer: int) -> AttentionSpec | Alias:
    anchor = config.anchor(layer)
    if anchor is not None:
        return Alias(anchor)
    own = config.attention_of(layer)
    if own.window is None:
        return FullAttention(own.num_kv_heads, own.head_dim)
    return SlidingWindow(window=own.window, kv_heads=own.num_kv_heads, head_dim=own.head_dim)


@hookimpl
def build_model(config: Gemma4Config, weights: Weights) -> nn.Module:
    """Build the text model and take its weights."""
    from .weights import build

    return build(config, weights)


@hookimpl
def output_protocol(config: Gemma4Config) -> OutputProtocol:
    """State Gemma 4's marks; behind a tool call, the model waits for the response."""
    return OutputProtocol(
        end_of_turn=("<turn|>", "<|tool_response>"),
        reasoning=("<|channel>thought", "<channel|>"),
        tool_call=("<|tool_call>", "<tool_call|>"),
    )
