"""Rotary embeddings of Gemma 4's two types of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neve.contract.errors import ConfigError
from neve.contract.forward import RopeSpec
from neve.layers.rope import rope_spec

from .layer_types import LAYER_TYPES, LayerType
from .raw import RawRope, RawText, read_nested, read_object

MAKERS_RULES: Mapping[LayerType, Mapping[str, Any]] = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1_000_000.0,
    },
}
"""Type of layer -> its rule where config.json has none."""


def proportional(head_dim: int, theta: float, fraction: float, factor: float) -> RopeSpec:
    """Return a rotation of a fraction of the pairs, with wavelengths of the whole head.

    Pairs are `(i, i + head_dim / 2)`; those of the highest frequencies turn, the others stand
    still. So it is not the rotation of a narrower head, whose pairs lie closer together.

    Args:
        head_dim: Elements of a head.
        theta: Base of the wavelengths.
        fraction: Share of the pairs that turn.
        factor: Frequencies are divided by it.
    """
    half = head_dim // 2
    turning = int(fraction * head_dim // 2)
    frequencies = [theta ** (-2 * i / head_dim) / factor for i in range(turning)]
    return RopeSpec(head_dim, theta, inv_freq=tuple(frequencies + [0.0] * (half - turning)))


def rope_parameters(raw: RawText, prefix: str) -> Mapping[str, Any]:
    """Return the rules of config.json, by type of layer.

    Args:
        raw: The text model's keys.
        prefix: Path of their object, for messages.

    Raises:
        ConfigError: They are no rules by type of layer.
    """
    parameters, key = raw.rope_parameters or {}, f"{prefix}rope_parameters"
    stray = sorted(set(parameters) - set(LAYER_TYPES))
    if stray:
        raise ConfigError(f"{key}.{stray[0]}", f"unknown; known: {', '.join(LAYER_TYPES)}")
    return parameters


def layer_rope(
    parameters: Mapping[str, Any],
    layer_type: LayerType,
    head_dim: int,
    max_context: int,
    prefix: str,
) -> RopeSpec:
    """Return the rotary embedding of a type of layer.

    Args:
        parameters: The rules, by type of layer.
        layer_type: The type.
        head_dim: Elements of a head.
        max_context: The model's context, in tokens.
        prefix: Path of the text model's keys, for messages.

    Raises:
        ConfigError: A value is mistyped, out of range, or contradicts the rule.
        UnsupportedModelError: An unknown rule.
    """
    makers, key = MAKERS_RULES[layer_type], f"{prefix}rope_parameters.{layer_type}"
    given = parameters.get(layer_type)
    rule = read_object(makers if given is None else given, key)
    raw = read_nested(rule, RawRope, f"{key}.")
    name = raw.rope_type or raw.type or "default"
    theta = raw.rope_theta or makers["rope_theta"]
    if name == "proportional":
        return proportional(head_dim, theta, raw.partial_rotary_factor, raw.factor)
    if raw.partial_rotary_factor != 1.0:
        raise ConfigError(
            f"{key}.rope_type",
            "must be 'proportional' beside a partial_rotary_factor of "
            f"{raw.partial_rotary_factor}, got {name!r}",
        )
    return rope_spec(head_dim, theta, rule, max_context=max_context)
