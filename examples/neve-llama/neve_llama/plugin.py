"""The hooks of the Llama family. `docs/plugins/tutorial.md` builds this file step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from neve.contract.cache_spec import CacheLayout, FullAttention, uniform_layout
from neve.contract.hooks import hookimpl
from neve.contract.plan import FamilyInfo, OutputProtocol

if TYPE_CHECKING:
    import mlx.nn as nn

    from neve.contract.weights import Weights

    from .config import LlamaConfig


@hookimpl
def family_info() -> FamilyInfo:
    """Name the family."""
    return FamilyInfo("llama", 2, ["llama"], "neve-llama")


@hookimpl
def parse_config(raw: Mapping[str, Any]) -> LlamaConfig:
    """Read config.json."""
    from .config import parse

    return parse(raw)


@hookimpl
def declare_cache_groups(config: LlamaConfig) -> CacheLayout:
    """Declare one group of full attention over all layers."""
    spec = FullAttention(config.num_key_value_heads, config.head_dim)
    return uniform_layout(spec, config.num_hidden_layers)


@hookimpl
def build_model(config: LlamaConfig, weights: Weights) -> nn.Module:
    """Build the model and take its weights."""
    from .model import Llama
    from .weights import hugging_face_weights, rope_of

    config = attrs.evolve(config, rope=rope_of(config, weights))
    return Llama(config).with_weights(hugging_face_weights(config, weights))


@hookimpl
def output_protocol(config: LlamaConfig) -> OutputProtocol:
    """State the marks that end a turn."""
    return OutputProtocol(end_of_turn=("<|im_end|>", "<|eot_id|>", "<|eom_id|>"))
