"""Conversion of a checkpoint's names and conventions to the model's.

Three layouts occur: Qwen's with all towers (`model.language_model.…`, `model.visual.…`,
`mtp.…`), a text-only layout (`model.…`), and the layout of MLX converters
(`language_model.model.…`, `vision_tower.…`). MLX converters also transpose convolution kernels
and add one to the weights of norms.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from neve.contract.weights import Weights
from neve.layers.norms import RMSNorm, ZeroCentredRMSNorm
from neve.layers.short_conv import taps

from .config import Qwen35Config
from .model import Norm, Qwen35

TEXT = "model.language_model."
_CONV = ".conv1d.weight"

# the vision tower and the drafting heads, which this text model lacks
_PASSED_OVER = re.compile(r"(language_model\.)?(model\.)?(visual|vision_tower|mtp)\..*")
_PREFIXES = ("model.language_model.", "language_model.model.", "model.")
_FUSED = re.compile(r"(.*\.experts\.)gate_up_proj(\..*)?")
_UNFUSED = re.compile(r"(.*\.experts\.)down_proj")


def _renamed(name: str, *, tied: bool) -> str | None:
    if _PASSED_OVER.fullmatch(name):
        return None
    if name.removeprefix("language_model.").startswith("lm_head."):
        # a tied checkpoint may still contain the embedding's copy as a head
        return None if tied else name.removeprefix("language_model.")
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = TEXT + name.removeprefix(prefix)
            break
    name = name.replace(".switch_mlp.", ".experts.")
    return f"{name}.weight" if _UNFUSED.fullmatch(name) else name


def _parts(name: str) -> Sequence[str] | None:
    """Return the names of the halves of the experts' fused projection."""
    fused = _FUSED.fullmatch(name)
    if fused is None:
        return None
    suffix = fused[2] or ".weight"
    return [f"{fused[1]}{half}_proj{suffix}" for half in ("gate", "up")]


def _is_mlx_layout(weights: Weights) -> bool:
    """Return whether convolution kernels are `[C, K, 1]`; K is at least two."""
    return any(name.endswith(_CONV) and weights.shape(name)[-1] == 1 for name in weights)


def _with_taps(name: str, tensor: mx.array) -> mx.array:
    return taps(tensor) if name.endswith(_CONV) else tensor


def build(config: Qwen35Config, weights: Weights) -> nn.Module:
    """Return the model with its weights.

    Raises:
        WeightError: The weights do not fit the model.
    """
    layer = RMSNorm if _is_mlx_layout(weights) else ZeroCentredRMSNorm
    norm: Norm = partial(layer, eps=config.rms_norm_eps)
    renamed = weights.renamed(partial(_renamed, tied=config.tie_word_embeddings))
    regrouped = renamed.split(_parts).stacked("experts").mapped(_with_taps)
    return Qwen35(config, norm).with_weights(regrouped, keep_float32=("A_log",))
