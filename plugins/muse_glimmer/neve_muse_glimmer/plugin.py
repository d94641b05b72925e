"""The hooks of the Muse-Glimmer family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neve.contract.cache_spec import CacheLayout, FullAttention, SlidingWindow, layer_routes
from neve.contract.hooks import hookimpl
from neve.contract.plan import ExecutionPlan, FamilyInfo, OutputProtocol
from neve.contract.sidecar import SidecarPolicy, anchor_grid, window_policy

if TYPE_CHECKING:
    import mlx.nn as nn

    from neve.contract.weights import Weights

    from .config import MuseGlimmerConfig

ANCHORS = anchor_grid(0, 5)
"""Boundaries of sidecars: 1, 4, 16, 64 and 256 blocks."""


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family; text-only checkpoints have a model type of their own."""
    types = ["muse_glimmer", "muse_glimmer_text"]
    return FamilyInfo("muse_glimmer", 2, types, "neve-muse-glimmer")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> MuseGlimmerConfig:
    """Read config.json."""
    from .config import parse

    return parse(raw)


@hookimpl
def declare_cache_groups(config: MuseGlimmerConfig) -> CacheLayout:
    """Declare a window for layers with rotation, and full attention for the others."""
    heads, head_dim = config.num_key_value_heads, config.head_dim
    full = FullAttention(heads, head_dim)
    sliding = SlidingWindow(window=config.sliding_window, kv_heads=heads, head_dim=head_dim)
    return layer_routes([full if rope is None else sliding for rope in config.ropes])


@hookimpl
def build_model(config: MuseGlimmerConfig, weights: Weights) -> nn.Module:
    """Build the text model and take its weights."""
    from neve.layers.joint import join_layers

    from .model import MuseGlimmer
    from .weights import own_weights

    model = MuseGlimmer(config)
    own_weights(config, weights).load_into(model)
    join_layers(model)
    return model


@hookimpl
def build_sidecar_policy(config: MuseGlimmerConfig, dtype: str) -> SidecarPolicy | None:
    """Declare the windows for sidecars; None without windows."""
    return window_policy(declare_cache_groups(config), dtype, anchors=ANCHORS)


@hookimpl
def execution_plan(config: MuseGlimmerConfig) -> ExecutionPlan:
    """Ask for recomputing, never spilling, of preempted requests."""
    return ExecutionPlan(spill=False)


@hookimpl
def output_protocol(config: MuseGlimmerConfig) -> OutputProtocol:
    """State Muse-Glimmer's marks.

    A turn is a chain of messages with recipients: reasoning goes to the model itself, calls go
    to a tool, the answer goes to the user. `<|eom|>` ends a message, `<|eot|>` the turn.
    """
    return OutputProtocol(
        end_of_turn=("<|eot|>",),
        reasoning=("to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),
        tool_call=("<atem:function_calls>", "</atem:function_calls>"),
    )
