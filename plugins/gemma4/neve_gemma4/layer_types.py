"""Attention type of each layer, and the layers that read an earlier layer's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast, get_args

from neve.checkpoint.config import Section
from neve.contract.errors import UnsupportedModelError

from .raw import RawText

LayerType: TypeAlias = Literal["sliding_attention", "full_attention"]

LAYER_TYPES: tuple[LayerType, ...] = get_args(LayerType)

_PATTERN = 5
"""Period of full attention where config.json lists no layer types."""


def read_layer_types(raw: RawText, text: Section) -> tuple[LayerType, ...]:
    """Return the attention type of each layer; the last layer has full attention.

    Args:
        raw: The text model's keys.
        text: The section of the keys.

    Raises:
        ConfigError: The list has a wrong length, or ends with another type.
        UnsupportedModelError: The list has an unknown type.
    """
    number, last = raw.num_hidden_layers, raw.num_hidden_layers - 1
    if raw.layer_types is None:
        return tuple(
            "full_attention" if (i + 1) % _PATTERN == 0 or i == last else "sliding_attention"
            for i in range(number)
        )
    unknown = sorted(set(raw.layer_types) - set(LAYER_TYPES))
    if unknown:
        raise UnsupportedModelError(
            f"layer type {unknown[0]!r} is not supported (known: {', '.join(LAYER_TYPES)})"
        )
    text.require_length(raw, "layer_types", "num_hidden_layers")
    # the reference implementation would force full attention there, with other shapes
    if raw.layer_types[last] != "full_attention":
        raise text.error("layer_types", "must end with full_attention")
    return cast("tuple[LayerType, ...]", tuple(raw.layer_types))


def read_num_shared_layers(
    raw: RawText, layer_types: Sequence[LayerType], text: Section
) -> int:
    """Return the number of last layers that read an earlier layer's keys and values.

    Raises:
        ConfigError: One of these layers has no earlier layer of its type to read.
    """
    shared, key = raw.num_kv_shared_layers, "num_kv_shared_layers"
    own = raw.num_hidden_layers - shared
    if own < 1:
        raise text.error(
            key, f"must be less than num_hidden_layers = {raw.num_hidden_layers}, got {shared}"
        )
    orphans = sorted(set(layer_types[own:]) - set(layer_types[:own]))
    if orphans:
        raise text.error(
            key, f"must leave a layer of {orphans[0]} with keys of its own, got {shared}"
        )
    return shared
