"""The hooks of the Nemotron-H family."""

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
from neve.contract.plan import ExecutionPlan, FamilyInfo, OutputProtocol

if TYPE_CHECKING:
    import mlx.nn as nn

    from neve.contract.weights import Weights

    from .config import MambaConfig, NemotronHConfig


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family."""
    return FamilyInfo("nemotron_h", 2, ["nemotron_h"], "neve-nemotron-h")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> NemotronHConfig:
    """Read config.json."""
    from .config import parse

    return parse(raw)


def _state(mamba: MambaConfig) -> RecurrentState:
    matrices = (mamba.num_heads, mamba.head_dim, mamba.state_dim)
    return RecurrentState(
        [
            StateTensor("conv", (mamba.kernel - 1, mamba.conv_dim), "float32"),
            StateTensor("ssm", matrices, "float32"),
        ]
    )


@hookimpl
def declare_cache_groups(config: NemotronHConfig) -> CacheLayout:
    """Declare full attention, a state for each Mamba-2 layer, and no cache for MLPs."""
    specs: dict[str, FullAttention | RecurrentState] = {}
    if config.attention is not None:
        attention = config.attention
        specs["attention"] = FullAttention(attention.num_kv_heads, attention.head_dim)
    if config.mamba is not None:
        specs["mamba"] = _state(config.mamba)
    return layer_routes([specs.get(kind) for kind in config.layer_types])


@hookimpl
def build_model(config: NemotronHConfig, weights: Weights) -> nn.Module:
    """Build the model and take its weights."""
    from .model import NemotronH
    from .weights import KEEP_FLOAT32, own_weights

    own = own_weights(config, weights)
    return NemotronH(config).with_weights(own, keep_float32=KEEP_FLOAT32)


@hookimpl
def execution_plan(config: NemotronHConfig) -> ExecutionPlan:
    """Ask for prefill slices of whole chunks, and row-exact steps of quantised weights."""
    chunk = None if config.mamba is None else config.mamba.chunk
    return ExecutionPlan(row_exact="quantized", prefill_chunk=chunk)


@hookimpl
def output_protocol(config: NemotronHConfig) -> OutputProtocol:
    """State Nemotron's marks."""
    return OutputProtocol(
        end_of_turn=("<|im_end|>",),
        reasoning=("<think>", "</think>"),
        tool_call=("<tool_call>", "</tool_call>"),
    )
