"""Conversion of a checkpoint's tensor names to the model's.

Three layouts occur: Google's with all towers (`model.language_model.…`,
`model.vision_tower.…`), a text-only layout (`model.…`), and the layout of MLX converters
(`language_model.model.…`). Experts have one tensor for all gate and up projections, one tensor
for each projection (`experts.switch_glu.gate_proj`), or separate tensors
(`experts.3.gate_proj`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import mlx.nn as nn

from neve.contract.weights import Weights
from neve.layers.joint import join_layers

from .config import Gemma4Config
from .model import Gemma4

TEXT = "model.language_model."

_PREFIXES = (TEXT, "language_model.model.", "model.")

# towers for images and sounds, which this text model lacks
_PASSED_OVER = re.compile(
    r"(model\.)?"
    r"(vision_tower|vision_embedder|audio_tower|embed_vision|embed_audio|multi_modal_projector)"
    r"\..*"
)
_KEYS = re.compile(re.escape(TEXT) + r"layers\.(\d+)\.self_attn\.[kv]_(proj|norm)\..*")
_FUSED = re.compile(r"(.*\.experts\.)gate_up_proj(\..*)?")
_UNFUSED = re.compile(r".*\.experts\.down_proj")


def _renamed(name: str, config: Gemma4Config) -> str | None:
    if _PASSED_OVER.fullmatch(name):
        return None
    head = name.removeprefix("language_model.")
    if head.startswith("lm_head."):
        # a tied checkpoint may still contain the embedding's copy as a head
        return None if config.tie_word_embeddings else head
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = TEXT + name.removeprefix(prefix)
            break
    if _is_unused(name, config):
        return None
    name = name.replace(".experts.switch_glu.", ".experts.")
    return f"{name}.weight" if _UNFUSED.fullmatch(name) else name


def _is_unused(name: str, config: Gemma4Config) -> bool:
    """Return whether a tensor is left over: keys of a layer that reads another's."""
    keys = _KEYS.fullmatch(name)
    return keys is not None and config.num_own_layers <= int(keys[1]) < config.num_hidden_layers


def _parts(name: str) -> Sequence[str] | None:
    """Return the names of the halves of the experts' fused projection."""
    fused = _FUSED.fullmatch(name)
    if fused is None:
        return None
    suffix = fused[2] or ".weight"
    return [f"{fused[1]}{half}_proj{suffix}" for half in ("gate", "up")]


def build(config: Gemma4Config, weights: Weights) -> nn.Module:
    """Return the model with its weights.

    Raises:
        WeightError: The weights do not fit the model.
    """
    model = Gemma4(config)
    renamed = weights.renamed(partial(_renamed, config=config))
    renamed.split(_parts).stacked("experts").load_into(model)
    join_layers(model)
    return model
