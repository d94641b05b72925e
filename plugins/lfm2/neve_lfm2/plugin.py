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
from neve.contract.plan import (
    ColdEligibility,
    ExecutionPlan,
    FamilyInfo,
    ModelShape,
    OutputProtocol,
)
from neve.contract.sidecar import SidecarPolicy, recurrent_policy

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn

    from neve.contract.forward import ForwardContext, StepBatch
    from neve.contract.weights import Weights

    from .config import Lfm2Config


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family."""
    return FamilyInfo("lfm2", 1, ["lfm2", "lfm2_moe"], "neve-lfm2")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> Lfm2Config:
    """Read config.json."""
    from .config import parse

    return parse(raw)


@hookimpl
def model_shape(config: Lfm2Config) -> ModelShape:
    """State the sizes."""
    return ModelShape(
        config.vocab_size, config.max_position_embeddings, config.num_hidden_layers
    )


@hookimpl
def declare_cache_groups(config: Lfm2Config) -> CacheLayout:
    """Declare one group of full attention, and the last inputs of each convolution."""
    attention = FullAttention(config.num_key_value_heads, config.head_dim)
    inputs = StateTensor("conv", (config.conv_length - 1, config.hidden_size))
    convolution = RecurrentState([inputs])
    return layer_routes([convolution if t == "conv" else attention for t in config.layer_types])


@hookimpl
def build_model(config: Lfm2Config, weights: Weights) -> nn.Module:
    """Build the model and take its weights."""
    from neve.layers.joint import join_layers

    from .model import Lfm2
    from .weights import own_weights

    model = Lfm2(config)
    own_weights(config, weights).load_into(model, keep_float32=["expert_bias"])
    join_layers(model)
    return model


@hookimpl
def forward(model: nn.Module, batch: StepBatch, context: ForwardContext) -> mx.array:
    """Compute logits `[R, vocab_size]`."""
    return model(batch, context)


@hookimpl
def cold_restore_eligibility(config: Lfm2Config | None) -> ColdEligibility:
    """Answer for the cold tier."""
    return ColdEligibility(
        True, "its blocks and its sidecars hold all that a prefix leaves behind"
    )


@hookimpl
def build_sidecar_policy(config: Lfm2Config, dtype: str) -> SidecarPolicy | None:
    """State what its recurrent layers leave behind; None without such layers."""
    layout = declare_cache_groups(config)
    return recurrent_policy("conv_state", layout, dtype) if layout.states else None


@hookimpl
def execution_plan(config: Lfm2Config) -> ExecutionPlan:
    """Ask for nothing special."""
    return ExecutionPlan()


@hookimpl
def output_protocol(config: Lfm2Config) -> OutputProtocol:
    """State LFM2's marks."""
    return OutputProtocol(
        end_of_turn=("<|im_end|>",),
        reasoning=("<think>", "</think>"),
        tool_call=("<|tool_call_start|>", "<|tool_call_end|>"),
    )
