"""Rotary embeddings of config.json: from keys and rules to frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from ..contract import limits
from ..contract.forward import RopeSpec
from ..contract.limits import read_number
from ..errors import ConfigError, UnsupportedModelError

_ORIGINAL = "original_max_position_embeddings"


def base_frequencies(dims: int, theta: float) -> list[float]:
    """Return the angular frequencies `[dims/2]` of the plain embedding, in radians a token."""
    return [theta ** (-2 * i / dims) for i in range(dims // 2)]


def _number(scaling: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = default if scaling.get(key) is None else scaling[key]
    within = limits.TOKENS if key == _ORIGINAL else limits.FACTOR
    return read_number(value, within, key)


def _linear(spec: RopeSpec, scaling: Mapping[str, Any], _: int) -> RopeSpec:
    factor = _number(scaling, "factor")
    inv_freq = tuple(f / factor for f in base_frequencies(spec.dims, spec.theta))
    return RopeSpec(spec.dims, spec.theta, spec.interleaved, inv_freq)


def _llama3(spec: RopeSpec, scaling: Mapping[str, Any], _: int) -> RopeSpec:
    """Stretch long wavelengths, keep short wavelengths, blend in between.

    Source: the rope scaling of Llama 3.1 in Meta's release.
    """
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    if high <= low:
        raise ConfigError("high_freq_factor", f"must exceed {low}, got {high}")
    original = _number(scaling, _ORIGINAL)

    def stretch(freq: float) -> float:
        turns = original * freq / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        return (1 - smooth) * freq / factor + smooth * freq

    inv_freq = tuple(stretch(f) for f in base_frequencies(spec.dims, spec.theta))
    return RopeSpec(spec.dims, spec.theta, spec.interleaved, inv_freq)


# parameters of YaRN variants that no family here uses
_YARN_VARIANTS = ("mscale", "mscale_all_dim", "truncate")


def _yarn(spec: RopeSpec, scaling: Mapping[str, Any], max_context: int) -> RopeSpec:
    """Blend interpolated and original frequencies along a ramp over the dimensions.

    Source: Peng et al., "YaRN: Efficient Context Window Extension", equations 19-22.
    """
    variants = [k for k in _YARN_VARIANTS if scaling.get(k) is not None]
    if variants:
        raise UnsupportedModelError(f"yarn with {', '.join(variants)} is not supported")
    if spec.theta == 1:
        raise ConfigError("rope_theta", "must exceed 1 for yarn, got 1")
    factor = _number(scaling, "factor")
    original = _number(scaling, _ORIGINAL, max_context)
    fast, slow = _number(scaling, "beta_fast", 32), _number(scaling, "beta_slow", 1)

    def dimension(turns: float) -> float:
        wavelengths = math.log(original / (turns * 2 * math.pi))
        return spec.dims * wavelengths / (2 * math.log(spec.theta))

    low = max(math.floor(dimension(fast)), 0)
    high = min(math.ceil(dimension(slow)), spec.dims - 1)

    def blend(i: int, freq: float) -> float:
        ramp = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
        return freq / factor * ramp + freq * (1 - ramp)

    inv_freq = tuple(blend(i, f) for i, f in enumerate(base_frequencies(spec.dims, spec.theta)))
    usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    scale = _number(scaling, "attention_factor", usual)
    return RopeSpec(spec.dims, spec.theta, spec.interleaved, inv_freq, scale)


_RULES: Mapping[str, Callable[[RopeSpec, Mapping[str, Any], int], RopeSpec]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


@attrs.frozen
class RopeRule:
    """The rotary embedding as config.json states it.

    Attributes:
        keys: The object that states the rule, under `rope_type` or `type`, with the rule's
            parameters; empty for the plain embedding.
        path: Path of the object, for errors.
        base: Base of the wavelengths.
        dims_key: Path of the key that states the width of a head.
    """

    keys: Mapping[str, Any]
    path: str
    base: float
    dims_key: str = "head_dim"

    def spec(
        self,
        dims: int,
        *,
        max_context: int,
        base: float | None = None,
        interleaved: bool = False,
    ) -> RopeSpec:
        """Return the rotary embedding of heads with `dims` rotated elements.

        Args:
            dims: Leading elements of a head that are rotated.
            max_context: The model's context, in tokens, for rules that need the context.
            base: Base of the wavelengths; None for the model's base.
            interleaved: Rotate pairs `(2i, 2i+1)`.

        Raises:
            ConfigError: A rule's parameter is missing, mistyped or out of range, or `dims` is
                odd.
            UnsupportedModelError: The rule is unknown.
        """
        if dims < 2 or dims % 2:
            raise ConfigError(self.dims_key, f"must leave an even number to rotate, not {dims}")
        spec = RopeSpec(dims, self.base if base is None else base, interleaved)
        try:
            return self._apply(spec, max_context)
        except ConfigError as error:
            raise ConfigError(f"{self.path}.{error.key}", error.reason) from error

    def _apply(self, spec: RopeSpec, max_context: int) -> RopeSpec:
        # a null value counts as missing, as everywhere in a config.json
        rule = self.keys.get("rope_type") or self.keys.get("type") or "default"
        if rule == "default":
            return spec
        if not isinstance(rule, str) or rule not in _RULES:
            known = ", ".join(["default", *_RULES])
            raise UnsupportedModelError(f"rope type {rule!r} is not supported (known: {known})")
        return _RULES[rule](spec, self.keys, max_context)

    def share(self, default: float) -> float:
        """Return `partial_rotary_factor`, the rotated share of a head.

        Raises:
            ConfigError: The value is no number above zero and at most one.
        """
        stated = self.keys.get("partial_rotary_factor")
        path = f"{self.path}.partial_rotary_factor"
        return default if stated is None else read_number(stated, limits.SHARE, path)


def rope_spec(
    dims: int,
    theta: float,
    scaling: Mapping[str, Any] | None,
    *,
    max_context: int,
    interleaved: bool = False,
) -> RopeSpec:
    """Return the rotary embedding of a base and a rule; see `RopeRule.spec`.

    Args:
        dims: Leading elements of a head that are rotated.
        theta: Base of the wavelengths.
        scaling: `rope_scaling` of config.json.
        max_context: The model's context, in tokens, for rules that need the context.
        interleaved: Rotate pairs `(2i, 2i+1)`.

    Raises:
        ConfigError: As `RopeRule.spec`.
        UnsupportedModelError: The rule is unknown.
    """
    rule = RopeRule(scaling or {}, "rope_scaling", theta)
    return rule.spec(dims, max_context=max_context, interleaved=interleaved)


def read_rope(
    keys: Mapping[str, Any],
    *,
    base: float | None,
    key: Callable[[str], str] = str,
    base_keys: Sequence[str] = ("rope_theta",),
    layer_type: str | None = None,
) -> RopeRule:
    """Return the rotary embedding of config.json, from its older or its newer keys.

    `rope_parameters` wins over `rope_scaling`, and a base inside that object over a base beside
    it. A given value always counts: a base of zero is an error, not a missing base.

    Args:
        keys: The model's keys.
        base: Default of the base; None if config.json must have a base.
        key: Name of a key -> its path, for errors.
        base_keys: Names of the base outside the object; the first present key wins.
        layer_type: Type of the layers, for configs with one object for each type.

    Raises:
        ConfigError: The base is missing or out of range, or the rule is no object.
    """
    name = "rope_parameters" if keys.get("rope_parameters") else "rope_scaling"
    rule, path = _object(keys.get(name), key(name)), key(name)
    if layer_type is not None and isinstance(rule.get(layer_type), Mapping):
        rule, path = rule[layer_type], f"{path}.{layer_type}"
    stated = [(rule.get("rope_theta"), f"{path}.rope_theta")]
    stated += [(keys.get(name), key(name)) for name in base_keys]
    for value, value_path in stated:
        if value is not None:
            found = read_number(value, limits.ROPE_BASE, value_path)
            return RopeRule(rule, path, found, key("head_dim"))
    if base is None:
        raise ConfigError(key("rope_parameters.rope_theta"), "required key is missing")
    return RopeRule(rule, path, base, key("head_dim"))


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(path, f"must be an object, got {value!r}")
    return value or {}
