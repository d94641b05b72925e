"""Rotary position embeddings: from a config's words to frequencies, and the rotation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from ..contract.forward import RopeSpec
from ..errors import ConfigError, UnsupportedModelError
from ..metal.fusion import fused
from ..metal.heads import Turns


def _base_frequencies(dims: int, theta: float) -> list[float]:
    return [theta ** (-2 * i / dims) for i in range(dims // 2)]


def _number(scaling: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = default if scaling.get(key) is None else scaling[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"rope_scaling.{key}", f"must be a positive number, got {value!r}")
    return float(value)


def _linear(spec: RopeSpec, scaling: Mapping[str, Any], _: int) -> RopeSpec:
    factor = _number(scaling, "factor")
    inv_freq = tuple(f / factor for f in _base_frequencies(spec.dims, spec.theta))
    return RopeSpec(spec.dims, spec.theta, spec.interleaved, inv_freq)


def _llama3(spec: RopeSpec, scaling: Mapping[str, Any], _: int) -> RopeSpec:
    """Stretch long wavelengths, keep short ones, blend between.

    Source: the rope scaling of Llama 3.1 as its makers ship it.
    """
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    if high <= low:
        raise ConfigError("rope_scaling.high_freq_factor", f"must exceed {low}, got {high}")
    original = _number(scaling, "original_max_position_embeddings")

    def stretch(freq: float) -> float:
        turns = original * freq / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        return (1 - smooth) * freq / factor + smooth * freq

    inv_freq = tuple(stretch(f) for f in _base_frequencies(spec.dims, spec.theta))
    return RopeSpec(spec.dims, spec.theta, spec.interleaved, inv_freq)


# parameters of variants of YaRN that no family here uses
_YARN_VARIANTS = ("mscale", "mscale_all_dim", "truncate")


def _yarn(spec: RopeSpec, scaling: Mapping[str, Any], max_context: int) -> RopeSpec:
    """Blend interpolated and original frequencies along a ramp over the dimensions.

    Source: Peng et al., "YaRN: Efficient Context Window Extension", equations 19-22.
    """
    variants = [k for k in _YARN_VARIANTS if scaling.get(k) is not None]
    if variants:
        raise UnsupportedModelError(f"yarn with {', '.join(variants)} is not supported")
    factor = _number(scaling, "factor")
    original = _number(scaling, "original_max_position_embeddings", max_context)
    fast, slow = _number(scaling, "beta_fast", 32), _number(scaling, "beta_slow", 1)

    def dimension(turns: float) -> float:
        wavelengths = math.log(original / (turns * 2 * math.pi))
        return spec.dims * wavelengths / (2 * math.log(spec.theta))

    low = max(math.floor(dimension(fast)), 0)
    high = min(math.ceil(dimension(slow)), spec.dims - 1)

    def blend(i: int, freq: float) -> float:
        ramp = min(1.0, max(0.0, (i - low) / max(high - low, 0.001)))
        return freq / factor * ramp + freq * (1 - ramp)

    inv_freq = tuple(
        blend(i, f) for i, f in enumerate(_base_frequencies(spec.dims, spec.theta))
    )
    usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    scale = _number(scaling, "attention_factor", usual)
    return RopeSpec(spec.dims, spec.theta, spec.interleaved, inv_freq, scale)


_RULES: Mapping[str, Callable[[RopeSpec, Mapping[str, Any], int], RopeSpec]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}


def rope_spec(
    dims: int,
    theta: float,
    scaling: Mapping[str, Any] | None,
    *,
    max_context: int,
    interleaved: bool = False,
) -> RopeSpec:
    """Return the rotary embedding that a config describes.

    Args:
        dims: Leading elements of a head that are rotated.
        theta: The base.
        scaling: `rope_scaling` or `rope_parameters` of config.json; its rule stands under
            `rope_type` or `type`.
        max_context: The model's context, in tokens, where a rule needs it.
        interleaved: Rotate pairs `(2i, 2i+1)`.

    Raises:
        ConfigError: A rule's parameter is missing or no number.
        UnsupportedModelError: An unknown rule.
    """
    spec = RopeSpec(dims, theta, interleaved)
    if not scaling:
        return spec
    # a null counts as missing, as everywhere in a config.json
    rule = scaling.get("rope_type") or scaling.get("type") or "default"
    if rule == "default":
        return spec
    if not isinstance(rule, str) or rule not in _RULES:
        known = ", ".join(["default", *_RULES])
        raise UnsupportedModelError(f"rope type {rule!r} is not supported (known: {known})")
    return _RULES[rule](spec, scaling, max_context)


@functools.cache
def _columns(spec: RopeSpec, width: int) -> tuple[mx.array, mx.array, mx.array]:
    """Return frequency, factor of the cosine and of the sine of each element, `[width]`.

    The sine's is negative where an element loses its partner's share. Elements that are not
    rotated have the frequency 0 and gain nothing.
    """
    freq = list(spec.inv_freq or _base_frequencies(spec.dims, spec.theta))
    half, rest = spec.dims // 2, [0.0] * (width - spec.dims)
    signs = [-spec.scale] * half + [spec.scale] * half
    both = freq + freq
    if spec.interleaved:
        both = [f for f in freq for _ in range(2)]
        signs = [-spec.scale, spec.scale] * half
    gains = [spec.scale] * spec.dims + [1.0 for _ in rest]
    columns = [mx.array(c, mx.float32) for c in (both + rest, gains, signs + rest)]
    mx.eval(columns)
    return columns[0], columns[1], columns[2]


@functools.cache
def _halves(spec: RopeSpec) -> tuple[mx.array, mx.array]:
    """Return frequencies `[dims]`, twice each, and which of them are the cosines'."""
    freq = mx.array([*(spec.inv_freq or _base_frequencies(spec.dims, spec.theta))] * 2)
    is_cos = mx.array([True] * (spec.dims // 2) + [False] * (spec.dims // 2))
    mx.eval(freq, is_cos)
    return freq, is_cos


@fused
def _blend(x: mx.array, partners: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    return x * cos + partners * sin


def _partners(x: mx.array, spec: RopeSpec) -> mx.array:
    """Return `x [T, H, D]` with the elements of each rotated pair exchanged."""
    half = spec.dims // 2
    if not spec.interleaved:
        parts = [x[..., half : spec.dims], x[..., :half]]
    else:
        pairs = x[..., : spec.dims].reshape(*x.shape[:-1], half, 2)
        parts = [pairs[..., ::-1].reshape(*x.shape[:-1], spec.dims)]
    if spec.dims < x.shape[-1]:
        parts.append(x[..., spec.dims :])
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)


class Rotation:
    """Rotates heads at the positions of one step; a table is made once a spec and dtype.

    Angles are computed in float32, as every implementation of the families does.
    """

    def __init__(self, positions: mx.array) -> None:
        self._positions = positions
        self._turns: dict[RopeSpec, Turns] = {}
        self._tables: dict[tuple[RopeSpec, int, mx.Dtype], tuple[mx.array, mx.array]] = {}

    def _table(self, spec: RopeSpec, width: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """Return the factors `[T, 1, width]` of elements and of their partners, in `dtype`."""
        table = self._tables.get((spec, width, dtype))
        if table is None:
            freq, gains, signs = _columns(spec, width)
            angles = self._positions[:, None, None].astype(mx.float32) * freq
            table = self._tables[spec, width, dtype] = (
                (mx.cos(angles) * gains).astype(dtype),
                (mx.sin(angles) * signs).astype(dtype),
            )
        return table

    def __call__(self, x: mx.array, spec: RopeSpec) -> mx.array:
        """Return `x [T, H, D]` with its first `spec.dims` elements rotated."""
        return _blend(x, _partners(x, spec), *self._table(spec, x.shape[-1], x.dtype))

    def turns(self, spec: RopeSpec) -> Turns:
        """Return the same rotation as kernels take it."""
        if spec not in self._turns:
            freq, is_cos = _halves(spec)
            angles = self._positions[:, None].astype(mx.float32) * freq
            # element by element, so that it can be one launch: a concatenation could not
            factors = mx.where(is_cos, mx.cos(angles), mx.sin(angles)) * spec.scale
            self._turns[spec] = Turns(factors, spec.interleaved)
        return self._turns[spec]
