"""The hooks of the Qwen3 family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neve.contract.cache_spec import CacheLayout, FullAttention, uniform_layout
from neve.contract.hooks import hookimpl
from neve.contract.plan import FamilyInfo, OutputProtocol

if TYPE_CHECKING:
    import mlx.nn as nn

    from neve.contract.weights import Weights

    from .config import Qwen3Config


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family."""
    return FamilyInfo("qwen3", 2, ["qwen3"], "neve-qwen3")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> Qwen3Config:
    """Read config.json."""
    from .config import parse

    return parse(raw)


@hookimpl
def declare_cache_groups(config: Qwen3Config) -> CacheLayout:
    """Declare one group of full attention over all layers."""
    spec = FullAttention(config.num_key_value_heads, config.head_dim)
    return uniform_layout(spec, config.num_hidden_layers)


@hookimpl
def build_model(config: Qwen3Config, weights: Weights) -> nn.Module:
    """Build the model and take its weights."""
    from .model import Qwen3

    return Qwen3(config).with_weights(weights)


@hookimpl
def output_protocol(config: Qwen3Config) -> OutputProtocol:
    """State Qwen3's marks."""
    return OutputProtocol(
        end_of_turn=("<|im_end|>",),
        reasoning=("<think>", "</think>"),
        tool_call=("<tool_call>", "</tool_call>"),
    )
