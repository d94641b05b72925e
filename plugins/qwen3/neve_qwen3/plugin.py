"""The hooks of the Qwen3 family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neve.contract.cache_spec import CacheLayout, FullAttention, uniform_layout
from neve.contract.hooks import hookimpl
from neve.contract.plan import (
    ColdEligibility,
    ExecutionPlan,
    FamilyInfo,
    ModelShape,
    OutputProtocol,
)
from neve.contract.sidecar import SidecarPolicy

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn

    from neve.contract.forward import ForwardContext, StepBatch
    from neve.contract.weights import Weights

    from .config import Qwen3Config


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family."""
    return FamilyInfo("qwen3", 1, ["qwen3"], "neve-qwen3")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> Qwen3Config:
    """Read config.json."""
    from .config import parse

    return parse(raw)


@hookimpl
def model_shape(config: Qwen3Config) -> ModelShape:
    """State the sizes."""
    return ModelShape(
        config.vocab_size, config.max_position_embeddings, config.num_hidden_layers
    )


@hookimpl
def declare_cache_groups(config: Qwen3Config) -> CacheLayout:
    """Declare one group of full attention over all layers."""
    spec = FullAttention(config.num_key_value_heads, config.head_dim)
    return uniform_layout(spec, config.num_hidden_layers)


@hookimpl
def build_model(config: Qwen3Config, weights: Weights) -> nn.Module:
    """Build the model and take its weights."""
    from neve.layers.joint import join_layers

    from .model import Qwen3

    model = Qwen3(config)
    # tied checkpoints may still carry a copy of the embedding as head
    if config.tie_word_embeddings:
        weights = weights.renamed(lambda name: None if name == "lm_head.weight" else name)
    weights.load_into(model)
    join_layers(model)
    return model


@hookimpl
def forward(model: nn.Module, batch: StepBatch, context: ForwardContext) -> mx.array:
    """Compute logits `[R, vocab_size]`."""
    return model(batch, context)


@hookimpl
def cold_restore_eligibility(config: Qwen3Config | None) -> ColdEligibility:
    """Answer for the cold tier."""
    return ColdEligibility(True, "every layer is in the pool: its blocks are the whole prefix")


@hookimpl
def build_sidecar_policy(config: Qwen3Config, dtype: str) -> SidecarPolicy | None:
    """State that nothing is kept outside the blocks."""
    return None


@hookimpl
def execution_plan(config: Qwen3Config) -> ExecutionPlan:
    """Ask for nothing special."""
    return ExecutionPlan()


@hookimpl
def output_protocol(config: Qwen3Config) -> OutputProtocol:
    """State Qwen3's marks."""
    return OutputProtocol(
        end_of_turn=("<|im_end|>",),
        reasoning=("<think>", "</think>"),
        tool_call=("<tool_call>", "</tool_call>"),
    )
