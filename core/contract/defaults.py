"""Answers to the hooks that a family leaves out, derived from its config and cache layout."""

from __future__ import annotations

from typing import Any

from .cache_spec import CacheLayout
from .plan import ColdEligibility, ModelShape
from .sidecar import SidecarPolicy, anchor_grid, recurrent_policy, window_policy

WINDOW_ANCHORS = anchor_grid(1, 4)
"""Boundaries, in blocks, at which every prompt's windows are worth a sidecar."""

CONFIG_NAMES = ("vocab_size", "max_position_embeddings", "num_hidden_layers")
"""Attributes of a config from which the default `model_shape` is read."""


def model_shape(config: Any) -> ModelShape:
    """Return the shape that a config states under the usual names.

    Raises:
        AttributeError: The config lacks one of `CONFIG_NAMES`.
    """
    return ModelShape(*(getattr(config, name) for name in CONFIG_NAMES))


def sidecar_policy(layout: CacheLayout, dtype: str) -> SidecarPolicy | None:
    """Return the policy of all that a layout keeps outside its blocks.

    None for a layout that keeps nothing there, and for one that is not `eligibility`'s.
    """
    return _policy(layout, dtype) if eligibility(layout).eligible else None


def _policy(layout: CacheLayout, dtype: str) -> SidecarPolicy | None:
    """Return the policy of a layout; None for nothing.

    Raises:
        ValueError: The layout keeps several kinds of state or window, which no sidecar holds.
    """
    if layout.states and layout.windows:
        raise ValueError("a sidecar holds states or windows, the layout has both")
    if layout.states:
        return recurrent_policy("ssm_state", layout, dtype)
    return window_policy(layout, dtype, anchors=WINDOW_ANCHORS)


def eligibility(layout: CacheLayout | None) -> ColdEligibility:
    """Return whether blocks and sidecars hold all that a prefix leaves behind.

    Args:
        layout: The cache layout; None where no config is known.
    """
    if layout is None:
        return ColdEligibility(True, "its blocks and its sidecars hold the whole prefix")
    try:
        policy = _policy(layout, "float32")
    except ValueError as error:
        return ColdEligibility(False, f"its prefixes cannot be stored: {error}")
    if policy is None:
        return ColdEligibility(True, "every layer is in the pool: its blocks hold the prefix")
    return ColdEligibility(True, "its blocks and its sidecars hold the whole prefix")
