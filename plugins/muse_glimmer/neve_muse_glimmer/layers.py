"""What each layer sees, and how it rotates: two tables of config.json that must agree."""

from __future__ import annotations

from collections.abc import Sequence

from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.contract.forward import RopeSpec
from neve.layers.rope import rope_spec

from .raw import DEFAULT_LAYERS, RawRope, RawText, read_nested

FULL, SLIDING = "full_attention", "sliding_attention"

_THETA = 10_000.0  # the makers' implementation, where no key names a base
_PERIOD = 4


def layer_ropes(raw: RawText, prefix: str) -> tuple[RopeSpec | None, ...]:
    """Return each layer's rotary embedding; None for one of full attention.

    Args:
        raw: The text model's keys.
        prefix: Their path, with a trailing dot, for errors.

    Raises:
        ConfigError: The tables differ in length, or a layer of full attention has a base, or
            a sliding one has none.
        UnsupportedModelError: An unknown kind of layer or rotary rule.
    """
    types = _types(raw, prefix)
    thetas = _thetas(raw, len(types), prefix)
    for layer, (kind, theta) in enumerate(zip(types, thetas, strict=True)):
        if (theta == 0) != (kind == FULL):
            right = "0, it has no positions" if kind == FULL else "positive"
            reason = f"layer {layer} is of {kind}, so its base must be {right}; got {theta}"
            raise ConfigError(f"{prefix}layer_rope_theta", reason)
    rule = raw.rope_scaling if raw.rope_parameters is None else raw.rope_parameters
    context = raw.max_position_embeddings
    return tuple(
        rope_spec(raw.head_dim, theta, rule, max_context=context) if theta else None
        for theta in thetas
    )


def _is_default_full(layer: int, num_layers: int) -> bool:
    """Return whether a layer is full by default: every fourth, counted from the last."""
    return (num_layers - 1 - layer) % _PERIOD == 0


def _types(raw: RawText, prefix: str) -> Sequence[str]:
    num_layers = raw.num_hidden_layers or DEFAULT_LAYERS
    if raw.layer_types is None:
        full = [_is_default_full(i, num_layers) for i in range(num_layers)]
        return [FULL if is_full else SLIDING for is_full in full]
    unknown = sorted(set(raw.layer_types) - {FULL, SLIDING})
    if unknown:
        raise UnsupportedModelError(
            f"layer type {unknown[0]!r} is not supported (known: {FULL}, {SLIDING})"
        )
    _check_length(raw, "layer_types", len(raw.layer_types), prefix)
    return raw.layer_types


def _thetas(raw: RawText, num_layers: int, prefix: str) -> Sequence[float]:
    """Return each layer's base, zero where nothing rotates.

    The makers' config class calls the table an override of the model's base, and their model
    rotates by the model's base all the same: where both are given, they have to be equal.
    """
    base = _base(raw, prefix)
    if raw.layer_rope_theta is None:
        theta = _THETA if base is None else base
        full = [_is_default_full(i, num_layers) for i in range(num_layers)]
        return [0.0 if is_full else theta for is_full in full]
    _check_length(raw, "layer_rope_theta", len(raw.layer_rope_theta), prefix)
    for layer, theta in enumerate(raw.layer_rope_theta):
        if theta < 0 or (theta and base is not None and theta != base):
            right = "0 or positive" if base is None else f"0 or the model's rope_theta, {base}"
            reason = f"the base of layer {layer} must be {right}; got {theta}"
            raise ConfigError(f"{prefix}layer_rope_theta", reason)
    return raw.layer_rope_theta


def _base(raw: RawText, prefix: str) -> float | None:
    """Return the model's base: `rope_parameters` wins over the older keys beside it."""
    name = "rope_scaling" if raw.rope_parameters is None else "rope_parameters"
    rule = getattr(raw, name) or {}
    inner = read_nested(rule, RawRope, f"{prefix}{name}.")
    return inner.rope_theta or raw.rope_theta


def _check_length(raw: RawText, key: str, length: int, prefix: str) -> None:
    num_layers = raw.num_hidden_layers
    if num_layers is None and length != DEFAULT_LAYERS:
        reason = f"required key is missing: {key} has {length} layers, not {DEFAULT_LAYERS}"
        raise ConfigError(f"{prefix}num_hidden_layers", reason)
    if num_layers is not None and length != num_layers:
        reason = f"must name num_hidden_layers = {num_layers} layers, got {length}"
        raise ConfigError(f"{prefix}{key}", reason)
