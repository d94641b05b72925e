"""Conversion of the published layouts of Nemotron-H weights to the model's.

| | NVIDIA | transformers | MLX | here |
|---|---|---|---|---|
| trunk | `backbone.` | `model.` | `backbone.` | `backbone.` |
| kernel | `[C, 1, K]` | `[C, 1, K]` | `[C, K, 1]` | `[K, C]` |
| experts | `experts.3.up_proj` | `experts.up_proj` | `switch_mlp.fc1` | `experts.up_proj` |
| router | `gate.weight` | `gate.weight` | `gate.weight` | `gate.router_weight` |

The router has a name of its own because it stays float32 in every compute dtype.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import mlx.core as mx

from neve.contract.weights import Weights
from neve.layers.short_conv import taps

from .config import NemotronHConfig

KEEP_FLOAT32 = ("router_weight", "e_score_correction_bias", "A_log", "D", "dt_bias")
"""Last name components of parameters that are float32 in every compute dtype."""

_KERNEL = ".conv1d.weight"

_RENAMES: Sequence[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), name)
    for pattern, name in (
        # a text model inside a larger model
        (r"^model\.language_model\.", "backbone."),
        (r"^language_model\.", ""),
        (r"^model\.", "backbone."),
        (r"\.switch_mlp\.fc1\.", ".experts.up_proj."),
        (r"\.switch_mlp\.fc2\.", ".experts.down_proj."),
        (r"(\.experts\.(?:up|down)_proj)$", r"\1.weight"),
        (r"\.mixer\.gate\.weight$", ".mixer.gate.router_weight"),
    )
]

# the drafting head, which this model lacks
_DRAFT_HEAD = "mtp."


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


def _kernel_as_taps(name: str, tensor: mx.array) -> mx.array:
    return taps(tensor) if name.endswith(_KERNEL) else tensor


def own_weights(config: NemotronHConfig, weights: Weights) -> Weights:
    """Return `weights` with the names and shapes of the model's parameters."""

    def keep(name: str) -> str | None:
        # a tied checkpoint may still contain the embedding's copy as a head
        copied = config.tie_word_embeddings and name.startswith("lm_head.")
        return None if copied or name.startswith(_DRAFT_HEAD) else name

    weights = weights.renamed(_renamed).renamed(keep)
    return weights.stacked("experts").mapped(_kernel_as_taps)
