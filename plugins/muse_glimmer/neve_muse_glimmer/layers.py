"""Attention type and rotary embedding of each layer: two tables that must agree."""

from __future__ import annotations

from collections.abc import Sequence

from neve.checkpoint.config import Section
from neve.contract import limits
from neve.contract.errors import UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.contract.limits import read_number
from neve.layers.rope_config import read_rope

from .raw import DEFAULT_LAYERS, RawText

FULL, SLIDING = "full_attention", "sliding_attention"

_THETA = 10_000.0  # default of the reference implementation
_PERIOD = 4


def layer_ropes(raw: RawText, text: Section) -> tuple[RopeSpec | None, ...]:
    """Return each layer's rotary embedding; None for a layer of full attention.

    Args:
        raw: The text model's keys.
        text: The section of the keys.

    Raises:
        ConfigError: The tables differ in length, or a layer of full attention has a base, or a
            sliding layer has none.
        UnsupportedModelError: A layer type or the rotary rule is unknown.
    """
    types = _types(raw, text)
    rule = read_rope(text.keys, key=text.key, base=0.0)
    thetas = _thetas(raw, rule.base, len(types), text)
    for layer, (kind, theta) in enumerate(zip(types, thetas, strict=True)):
        if (theta == 0) != (kind == FULL):
            right = "0, as full attention has no positions" if kind == FULL else "positive"
            reason = f"layer {layer} is of {kind}, so its base must be {right}; got {theta}"
            raise text.error("layer_rope_theta", reason)
    dims, context = raw.head_dim, raw.max_position_embeddings
    specs = {t: rule.spec(dims, base=t, max_context=context) for t in set(thetas) - {0.0}}
    return tuple(specs.get(theta) for theta in thetas)


def _is_default_full(layer: int, num_layers: int) -> bool:
    """Return whether a layer is full by default: every fourth, counted from the last layer."""
    return (num_layers - 1 - layer) % _PERIOD == 0


def _types(raw: RawText, text: Section) -> Sequence[str]:
    num_layers = raw.num_hidden_layers or DEFAULT_LAYERS
    if raw.layer_types is None:
        full = [_is_default_full(i, num_layers) for i in range(num_layers)]
        return [FULL if is_full else SLIDING for is_full in full]
    unknown = sorted(set(raw.layer_types) - {FULL, SLIDING})
    if unknown:
        raise UnsupportedModelError(
            f"layer type {unknown[0]!r} is not supported (known: {FULL}, {SLIDING})"
        )
    _check_length(raw, "layer_types", len(raw.layer_types), text)
    return raw.layer_types


def _thetas(raw: RawText, base: float, num_layers: int, text: Section) -> Sequence[float]:
    """Return each layer's base; zero for a layer without rotation.

    The reference config calls the table an override of the model's base, but the reference
    model rotates by the model's base. So where both are given, they must be equal.
    """
    if raw.layer_rope_theta is None:
        theta = base or _THETA
        full = [_is_default_full(i, num_layers) for i in range(num_layers)]
        return [0.0 if is_full else theta for is_full in full]
    _check_length(raw, "layer_rope_theta", len(raw.layer_rope_theta), text)
    for layer, theta in enumerate(raw.layer_rope_theta):
        if theta > 0:
            read_number(theta, limits.ROPE_BASE, text.key("layer_rope_theta"))
        if theta < 0 or (theta and base and theta != base):
            right = f"0 or the model's rope_theta, {base}" if base else "0 or positive"
            reason = f"the base of layer {layer} must be {right}; got {theta}"
            raise text.error("layer_rope_theta", reason)
    return raw.layer_rope_theta


def _check_length(raw: RawText, key: str, length: int, text: Section) -> None:
    num_layers = raw.num_hidden_layers
    if num_layers is None and length != DEFAULT_LAYERS:
        reason = f"required key is missing: {key} has {length} layers, not {DEFAULT_LAYERS}"
        raise text.error("num_hidden_layers", reason)
    if num_layers is not None and length != num_layers:
        reason = f"must name num_hidden_layers = {num_layers} layers, got {length}"
        raise text.error(key, reason)
