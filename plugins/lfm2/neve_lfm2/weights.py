"""Conversion of the published layouts of LFM2 weights to the model's.

| | Hugging Face | MLX | here |
|---|---|---|---|
| kernel | `[C, 1, K]` | `[C, K, 1]` | `[K, C]` |
| MLP | `w1`, `w3`, `w2` | `w1` or `gate_proj`, … | `w1`, `w3`, `w2` |
| experts | `experts.3.w1`, `….gate_up_proj` | `switch_mlp.gate_proj` | `experts.gate_proj` |
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import mlx.core as mx

from neve.contract.weights import Weights
from neve.layers.short_conv import taps

from .config import Lfm2Config

_KERNEL = ".conv.conv.weight"
_FUSED = re.compile(r"(.+\.experts)\.gate_up_proj(?:\.(\w+))?")

_RENAMES: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), name)
    for pattern, name in (
        # a text model inside a larger model
        (r"^model\.language_model\.", "model."),
        (r"^language_model\.", ""),
        (r"\.feed_forward\.switch_mlp\.", ".feed_forward.experts."),
        (r"\.feed_forward\.gate_proj\.", ".feed_forward.w1."),
        (r"\.feed_forward\.up_proj\.", ".feed_forward.w3."),
        (r"\.feed_forward\.down_proj\.", ".feed_forward.w2."),
        (r"\.experts\.w1\.", ".experts.gate_proj."),
        (r"\.experts\.w3\.", ".experts.up_proj."),
        (r"\.experts\.w2\.", ".experts.down_proj."),
        (r"\.experts\.down_proj$", ".experts.down_proj.weight"),
    )
]


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


def _unfused(name: str) -> Sequence[str] | None:
    match = _FUSED.fullmatch(name)
    if match is None:
        return None
    kind = match[2] or "weight"
    return [f"{match[1]}.gate_proj.{kind}", f"{match[1]}.up_proj.{kind}"]


def _kernel_as_taps(name: str, tensor: mx.array) -> mx.array:
    return taps(tensor) if name.endswith(_KERNEL) else tensor


def own_weights(config: Lfm2Config, weights: Weights) -> Weights:
    """Return `weights` with the names and shapes of the model's parameters."""

    def keep(name: str) -> str | None:
        # a tied checkpoint may still contain the embedding's copy as a head
        return None if config.tie_word_embeddings and name.startswith("lm_head.") else name

    weights = weights.stacked("experts").split(_unfused)
    return weights.renamed(_renamed).renamed(keep).mapped(_kernel_as_taps)
