"""Default answers to the optional hooks, derived from a family's config and cache layout."""

from __future__ import annotations

from typing import Any

from .cache_spec import CacheLayout
from .plan import ColdEligibility, ModelShape
from .sidecar import SidecarPolicy, anchor_grid, recurrent_policy, window_policy

WINDOW_ANCHORS = anchor_grid(1, 4)
"""Boundaries, in blocks, at which a window of every prompt is written as a sidecar."""

CONFIG_NAMES = ("vocab_size", "max_position_embeddings", "num_hidden_layers")
"""Attributes of a config from which the default `model_shape` is read."""


def model_shape(config: Any) -> ModelShape:
    """Return the shape that a config states under the usual names.

    Raises:
        AttributeError: The config lacks one of `CONFIG_NAMES`.
    """
    return ModelShape(*(getattr(config, name) for name in CONFIG_NAMES))


def sidecar_policy(layout: CacheLayout, dtype: str) -> SidecarPolicy | None:
    """Return the policy for windows and recurrent states, which lie outside the blocks.

    None for a layout without windows and states, and for a layout that is not eligible.
    """
    return _policy(layout, dtype) if eligibility(layout).eligible else None


def _policy(layout: CacheLayout, dtype: str) -> SidecarPolicy | None:
    """Return the sidecar policy of a layout; None without windows and states.

    Raises:
        ValueError: No single sidecar can hold the layout's states and windows.
    """
    if layout.states and layout.windows:
        raise ValueError("a sidecar holds states or windows, the layout has both")
    if layout.states:
        return recurrent_policy("ssm_state", layout, dtype)
    return window_policy(layout, dtype, anchors=WINDOW_ANCHORS)


def eligibility(layout: CacheLayout | None) -> ColdEligibility:
    """Return whether blocks and sidecars together hold the whole cache of a prefix.

    Args:
        layout: The cache layout; None where no config is known.
    """
    if layout is None:
        return ColdEligibility(True, "blocks and sidecars hold the whole cache of a prefix")
    try:
        policy = _policy(layout, "float32")
    except ValueError as error:
        return ColdEligibility(False, f"no sidecar can hold the layout: {error}")
    if policy is None:
        return ColdEligibility(
            True, "every layer is in the pool: blocks hold the whole cache of a prefix"
        )
    return ColdEligibility(True, "blocks and sidecars hold the whole cache of a prefix")
