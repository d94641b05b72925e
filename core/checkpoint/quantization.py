"""The quantisation of an MLX checkpoint's layers, from config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs

from ..errors import ConfigError, UnsupportedModelError

Mode: TypeAlias = Literal["affine", "mxfp4", "mxfp8", "nvfp4"]

_AFFINE_GROUP_SIZES = (32, 64, 128)
_AFFINE_BITS = (2, 3, 4, 5, 6, 8)
_DEFAULTS: Mapping[Mode, tuple[int, int]] = {
    "affine": (64, 4),
    "mxfp4": (32, 4),
    "mxfp8": (32, 8),
    "nvfp4": (16, 4),
}
"""Mode -> default group size and bits; the floating-point modes allow no others."""

_FIELDS = ("group_size", "bits", "mode")


@attrs.frozen
class LayerQuantization:
    """The quantisation of one layer.

    Attributes:
        group_size: Consecutive elements of a row that share one scale.
        bits: Bits of an element.
        mode: `affine` has floating-point scales and biases, other modes 8-bit scales only.
    """

    group_size: int
    bits: int
    mode: Mode


@attrs.frozen
class Quantization:
    """The quantisation of a checkpoint.

    Attributes:
        default: Quantisation of quantised layers that `layers` does not name.
        layers: Module path -> quantisation of the layer; None for a layer without.
    """

    default: LayerQuantization
    layers: Mapping[str, LayerQuantization | None]

    def of(self, path: str, *, has_scales: bool) -> LayerQuantization | None:
        """Return the quantisation of the layer at `path`; None for an unquantised layer.

        Args:
            path: The module's path.
            has_scales: The checkpoint has scales for the layer. A layer that config.json does
                not name is quantised exactly if it has scales.
        """
        if path in self.layers:
            return self.layers[path]
        return self.default if has_scales else None

    def renamed(self, fn: Callable[[str], str | None]) -> Quantization:
        """Return the quantisation with the module paths renamed as `fn` renames tensors."""
        layers: dict[str, LayerQuantization | None] = {}
        for path, layer in self.layers.items():
            name = fn(f"{path}.weight")
            if name is not None:
                layers[name.removesuffix(".weight")] = layer
        return attrs.evolve(self, layers=layers)


def _parse_mode(raw: Any, key: str) -> Mode:
    if raw not in get_args(Mode):
        raise ConfigError(f"{key}.mode", f"must be one of {', '.join(_DEFAULTS)}, got {raw!r}")
    return cast("Mode", raw)


def _parse_number(raw: Any, allowed: tuple[int, ...], key: str) -> int:
    if type(raw) is not int or raw not in allowed:
        choice = ", ".join(map(str, allowed))
        raise ConfigError(key, f"must be one of {choice}, got {raw!r}")
    return raw


def _parse_layer(raw: Mapping[str, Any], key: str) -> LayerQuantization:
    mode = _parse_mode(raw.get("mode", "affine"), key)
    group_size, bits = _DEFAULTS[mode]
    affine = mode == "affine"
    return LayerQuantization(
        _parse_number(
            raw.get("group_size", group_size),
            _AFFINE_GROUP_SIZES if affine else (group_size,),
            f"{key}.group_size",
        ),
        _parse_number(
            raw.get("bits", bits), _AFFINE_BITS if affine else (bits,), f"{key}.bits"
        ),
        mode,
    )


def _parse_override(raw: Any, default: LayerQuantization, key: str) -> LayerQuantization | None:
    if isinstance(raw, bool):
        return default if raw else None
    if not isinstance(raw, dict):
        raise ConfigError(key, f"must be an object, true or false, got {raw!r}")
    unknown = sorted(set(raw) - set(_FIELDS))
    if unknown:
        raise ConfigError(f"{key}.{unknown[0]}", f"unknown; known: {', '.join(_FIELDS)}")
    return _parse_layer(raw, key)


def _parse(raw: Any, key: str) -> Quantization:
    if not isinstance(raw, dict):
        raise ConfigError(key, f"must be an object, got {raw!r}")
    if "quant_method" in raw:
        raise UnsupportedModelError(
            f"config.json: {key}: checkpoints quantised by {raw['quant_method']!r} are not "
            "supported; use one in MLX's own format (affine, mxfp4, mxfp8 or nvfp4) or an "
            "unquantised one"
        )
    default = _parse_layer(raw, key)
    layers = {
        path: _parse_override(value, default, f"{key}.{path}")
        for path, value in raw.items()
        if path not in _FIELDS
    }
    return Quantization(default, layers)


def parse_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """Return the quantisation of a checkpoint; None if config.json states none.

    `quantization` wins over `quantization_config`, the outer object over `text_config`.

    Raises:
        ConfigError: A value is mistyped, or MLX lacks the combination of values.
        UnsupportedModelError: The checkpoint was quantised by another method.
    """
    text_config = config.get("text_config")
    parts = [("", config)]
    if isinstance(text_config, dict):
        parts.append(("text_config.", text_config))
    for prefix, part in parts:
        for key in ("quantization", "quantization_config"):
            if part.get(key) is not None:
                return _parse(part[key], prefix + key)
    return None
