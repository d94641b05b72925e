"""Conversion of the published names of Muse-Glimmer weights to the model's.

| layout | text model | head | vision |
|---|---|---|---|
| the publisher's | `model.language_model.…` | `lm_head.…` | `model.vision_tower.…` |
| text only | `model.…` | `lm_head.…` | |
| MLX converters' | `language_model.model.…` | `language_model.lm_head.…` | `vision_tower.…` |

All layouts store the norms inside layers as distances from one.
"""

from __future__ import annotations

import re
from functools import partial

from neve.contract.weights import Weights

from .config import MuseGlimmerConfig

TEXT = "model.language_model."

_PREFIX = re.compile(r"(model\.language_model|language_model\.model|language_model|model)\.")
# the vision tower, which this text model lacks
_VISION = re.compile(r"(model\.)?(vision_tower|vision_adapter|vision_projection)\..*")


def _renamed(name: str, *, tied: bool) -> str | None:
    if _VISION.fullmatch(name):
        return None
    prefix = _PREFIX.match(name)
    rest = name[prefix.end() :] if prefix else name
    if rest.startswith("lm_head."):
        # a tied checkpoint may still contain the embedding's copy as a head
        return None if tied else rest
    return TEXT + rest if prefix else name


def own_weights(config: MuseGlimmerConfig, weights: Weights) -> Weights:
    """Return `weights` with the names of the model's parameters."""
    return weights.renamed(partial(_renamed, tied=config.tie_word_embeddings))
