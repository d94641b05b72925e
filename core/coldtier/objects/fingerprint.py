"""The model fingerprint: two models with different state never share the key of an object."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
from attrs import validators

from ...contract.cache_spec import CacheLayout
from ...contract.page_format import PageFormat
from ...ids import Fingerprint

FORMAT = "neve-cold-v1"

STATE_VERSION = 1
"""Raised when the core comes to write other values for the same model and tokens."""

WEIGHT_DIGEST_BYTES = 32

# Keys of config.json that cannot change a computation. Every other key counts, even one that
# looks like a note: a family gets the whole config and may read any key.
# - `_name_or_path` is the path from which the checkpoint was last saved, on another machine.
#   The key is left out, so that a copy and its original are one model.
# - `transformers_version` counts: readers have chosen conventions by this key.
# - `architectures` counts: one model type may have variants that differ by class alone.
# - `dtype`, `use_cache`, token ids, dropout rates, labels count: no proof exists that they
#   have no effect, and they rarely change.
# A key too many costs one prefill after an edit; a key too few costs a wrong answer.
IGNORED_CONFIG_KEYS = frozenset({"_name_or_path"})


@attrs.frozen
class GroupGeometry:
    """The shape of one cache group's blocks.

    Attributes:
        num_layers: Layers that own storage in the group.
        page: Planes of a layer's page.
    """

    num_layers: int = attrs.field(validator=validators.ge(1))
    page: PageFormat

    def parts(self) -> Iterator[tuple[str, bytes]]:
        """Yield tag and payload of each part of the encoding.

        A page of keys and values alone is three numbers, as in the fingerprints of stores
        that exist.
        """
        plain = self.page.plain
        if plain is not None:
            yield "group", _numbers(self.num_layers, *plain)
            return
        yield "group", _numbers(self.num_layers)
        yield "num_planes", _numbers(len(self.page.planes))
        for plane in self.page.planes:
            yield "plane", _text(plane.name)
            yield "shape", _numbers(plane.heads, plane.dim)
            yield "dtype", _text(plane.dtype or "")


def geometry(layout: CacheLayout) -> tuple[GroupGeometry, ...]:
    """Return the geometry of a layout's groups, in their order."""
    return tuple(
        GroupGeometry(layout.num_group_layers(index), spec.page_format)
        for index, spec in enumerate(layout.groups)
    )


@attrs.frozen(kw_only=True)
class FingerprintComponents:
    """Everything that decides the keys and values of a model for given tokens.

    Attributes:
        family: The family's name.
        family_state_version: Raised when the family's code comes to write other values.
        model_type: `model_type` of config.json.
        config: The whole of config.json.
        weights: Digest of every byte of the weights.
        block_size: Tokens of a block.
        groups: One geometry a cache group.
        cache_dtype: Dtype of stored keys and values.
        compute_dtype: Dtype in which keys and values are computed.
        state_version: `STATE_VERSION` of the core.
    """

    family: str
    family_state_version: int
    model_type: str
    config: Mapping[str, Any]
    weights: bytes = attrs.field(
        repr=bytes.hex,
        validator=[
            validators.min_len(WEIGHT_DIGEST_BYTES),
            validators.max_len(WEIGHT_DIGEST_BYTES),
        ],
    )
    block_size: int = attrs.field(validator=validators.ge(1))
    groups: tuple[GroupGeometry, ...] = attrs.field(converter=tuple)
    cache_dtype: str
    compute_dtype: str
    state_version: int = STATE_VERSION


def canonical_config(config: Mapping[str, Any]) -> bytes:
    """Return one text for all key orders and spacings of a config.json.

    As in JSON, `1`, `1.0` and `true` are three values. Floats have their shortest exact form;
    `NaN`, `Infinity` and `-Infinity` are words.

    Raises:
        TypeError: A value has no form in JSON.
    """
    counted = {key: value for key, value in config.items() if key not in IGNORED_CONFIG_KEYS}
    # ASCII: JSON can contain a lone surrogate, which UTF-8 cannot encode
    return json.dumps(
        counted, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    ).encode()


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _numbers(*values: int) -> bytes:
    return ",".join(map(str, values)).encode()


def _parts(components: FingerprintComponents) -> Iterator[tuple[str, bytes]]:
    yield "format", _text(FORMAT)
    yield "state_version", _numbers(components.state_version)
    yield "family", _text(components.family)
    yield "family_state_version", _numbers(components.family_state_version)
    yield "model_type", _text(components.model_type)
    yield "config", canonical_config(components.config)
    yield "weights", components.weights
    yield "block_size", _numbers(components.block_size)
    yield "num_groups", _numbers(len(components.groups))
    for group in components.groups:
        yield from group.parts()
    yield "cache_dtype", _text(components.cache_dtype)
    yield "compute_dtype", _text(components.compute_dtype)


def encode(components: FingerprintComponents) -> bytes:
    """Return the components as bytes: length and tag, then length and value, for each.

    Equal bytes mean equal components, apart from `IGNORED_CONFIG_KEYS` and key order.
    """
    framed = bytearray()
    for tag, payload in _parts(components):
        for piece in (tag.encode(), payload):
            framed += struct.pack("<Q", len(piece)) + piece
    return bytes(framed)


def fingerprint(components: FingerprintComponents) -> Fingerprint:
    """Return the 32 bytes that identify a model in the keys of its cold objects."""
    return Fingerprint(hashlib.sha256(encode(components)).digest())
