"""The model fingerprint: whatever differs in it, differs in the keys of every cold object."""

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
"""Rises when the core itself comes to write other numbers for the same model and tokens."""

WEIGHT_DIGEST_BYTES = 32

# Keys of config.json that no computation can follow. Everything else counts, also what looks
# like a note, since a family is handed the whole config and may read any of it:
# - `_name_or_path` is the place that the checkpoint was last saved from, a path on somebody
#   else's disk. It is left out; a copy and its original are one model.
# - `transformers_version` stays in: readers have told conventions apart by it.
# - `architectures` stays in: one model type may have variants that differ by class alone.
# - `dtype`, `use_cache`, token ids, dropout rates, labels: no proof, and they hardly change.
# A key too many costs one prefill after the edit; a key too few costs a wrong answer.
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
    """All that decides which keys and values a model writes for given tokens.

    Attributes:
        family: The family's name.
        family_state_version: Rises when the family's code comes to write other numbers.
        model_type: What config.json calls the model.
        config: The whole of config.json.
        weights: Digest of every byte of the weights.
        block_size: Tokens of a block.
        groups: One geometry a cache group.
        cache_dtype: What keys and values are stored as.
        compute_dtype: What they are computed in.
        state_version: The core's own.
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
    """Return the text that all orders and spacings of one config.json share.

    Numbers are told apart as JSON does: `1`, `1.0` and `true` are three values. Floats have
    their shortest exact form, and `NaN`, `Infinity` and `-Infinity` are words.

    Raises:
        TypeError: A value is nothing that JSON could have held.
    """
    counted = {key: value for key, value in config.items() if key not in IGNORED_CONFIG_KEYS}
    # ASCII: a lone surrogate, which JSON can carry, has no UTF-8
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
    """Return the components as bytes, each behind its tag; a length stands before either.

    Equal bytes mean equal components, `IGNORED_CONFIG_KEYS` and the order of keys aside.
    """
    framed = bytearray()
    for tag, payload in _parts(components):
        for piece in (tag.encode(), payload):
            framed += struct.pack("<Q", len(piece)) + piece
    return bytes(framed)


def fingerprint(components: FingerprintComponents) -> Fingerprint:
    """Return the 32 bytes that stand for a model in the keys of its cold objects."""
    return Fingerprint(hashlib.sha256(encode(components)).digest())
