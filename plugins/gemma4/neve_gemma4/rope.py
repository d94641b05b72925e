"""Rotary embeddings of Gemma 4's two types of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from neve.checkpoint.config import Section
from neve.contract.forward import RopeSpec
from neve.layers.rope_config import RopeRule

from .layer_types import LAYER_TYPES, LayerType
from .raw import RawRope

MAKERS_RULES: Mapping[LayerType, Mapping[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1_000_000.0,
    },
}
"""Layer type -> default rule, for a config.json without a rule."""


def proportional(head_dim: int, theta: float, fraction: float, factor: float) -> RopeSpec:
    """Return a rotation of a fraction of the pairs, with wavelengths of the whole head.

    Pairs are `(i, i + head_dim / 2)`. The pairs of the highest frequencies rotate, the others
    do not. A narrower head would rotate differently, because its pairs lie closer together.

    Args:
        head_dim: Elements of a head.
        theta: Base of the wavelengths.
        fraction: Share of the pairs that rotate.
        factor: Divisor of the frequencies.
    """
    half = head_dim // 2
    turning = int(fraction * head_dim // 2)
    frequencies = [theta ** (-2 * i / head_dim) / factor for i in range(turning)]
    return RopeSpec(head_dim, theta, inv_freq=tuple(frequencies + [0.0] * (half - turning)))


def check_layer_types(rules: Section) -> None:
    """Check that config.json states its rules by layer type.

    Raises:
        ConfigError: A rule has another name.
    """
    stray = sorted(set(rules.keys) - set(LAYER_TYPES))
    if stray:
        raise rules.error(stray[0], f"unknown; known: {', '.join(LAYER_TYPES)}")


def layer_rope(
    rules: Section, layer_type: LayerType, head_dim: int, max_context: int
) -> RopeSpec:
    """Return the rotary embedding of a layer type.

    Args:
        rules: The rules of config.json, by layer type.
        layer_type: The layer type.
        head_dim: Elements of a head.
        max_context: The model's context, in tokens.

    Raises:
        ConfigError: A value is mistyped, out of range, or contradicts the rule.
        UnsupportedModelError: The rule is unknown.
    """
    makers, rule = MAKERS_RULES[layer_type], rules.at(layer_type)
    if not rules.has(layer_type):
        rule = attrs.evolve(rule, keys=makers)
    raw = rule.read(RawRope)
    name = raw.rope_type or raw.type or "default"
    base = makers["rope_theta"] if raw.rope_theta is None else raw.rope_theta
    if name == "proportional":
        return proportional(head_dim, base, raw.partial_rotary_factor, raw.factor)
    if raw.partial_rotary_factor != 1.0:
        raise rule.error(
            "rope_type",
            "must be 'proportional' beside a partial_rotary_factor of "
            f"{raw.partial_rotary_factor}, got {name!r}",
        )
    path = rules.key(layer_type)
    return RopeRule(rule.keys, path, base).spec(head_dim, max_context=max_context)
