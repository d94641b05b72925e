"""The header of a cold object, rendered from the object's layout.

One layout, name and fingerprint give one header, byte for byte. A reader knows the expected
header, so the reader compares bytes and never parses an untrusted file.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

import attrs
from attrs import validators

from ...ids import ColdKey, Fingerprint
from .keys import KEY_BYTES, ColdGroup, ObjectName

ABI = "neve-cold-v1"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 2**18
METADATA = "__metadata__"

IDENTITY = ("abi", "group", "key", "fingerprint", "after", "checksum")
"""First keys of every object's metadata.

`after` is the key of the block that a restore must read before the object: for a block the
block before, for a sidecar the block at whose end the state was taken. Only the order of
eviction depends on `after`.
"""

ITEMSIZES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}
"""Dtype, as safetensors calls it -> bytes of an element."""

DIGITS = 2 * KEY_BYTES
"""Hexadecimal digits of a key, a fingerprint or a checksum."""

_ALIGNMENT = 64
_MAX_DIMS = 8
_MAX_DIM = 2**31 - 1


def _sound_shape(_: object, attribute: attrs.Attribute[Any], shape: tuple[Any, ...]) -> None:
    # a bool is an int to Python
    sound = all(type(dim) is int and 1 <= dim <= _MAX_DIM for dim in shape)
    if not sound or not 1 <= len(shape) <= _MAX_DIMS:
        raise ValueError(
            f"{attribute.name} must be 1 to {_MAX_DIMS} integers from 1 to {_MAX_DIM}"
        )


@attrs.frozen(cache_hash=True)
class TensorSpec:
    """One tensor of an object.

    Attributes:
        name: Name of `a-z`, `0-9`, `_` and `.`, other than `__metadata__`.
        dtype: A key of `ITEMSIZES`.
        shape: Dimensions of the tensor.
    """

    name: str = attrs.field(validator=validators.matches_re(rf"(?!{METADATA}$)[a-z0-9_.]+"))
    dtype: str = attrs.field(validator=validators.in_(ITEMSIZES))
    shape: tuple[int, ...] = attrs.field(converter=tuple, validator=_sound_shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * ITEMSIZES[self.dtype]


@attrs.frozen(cache_hash=True)
class ObjectLayout:
    """Everything about an object but its name, model and content.

    Attributes:
        group: Group of the object.
        tensors: Tensors of the object, in the order of the file.
        facts: More metadata, names and values, for readers other than neve.
    """

    group: ColdGroup
    tensors: tuple[TensorSpec, ...] = attrs.field(converter=tuple)
    facts: tuple[tuple[str, str], ...] = attrs.field(default=(), converter=tuple)

    def __attrs_post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if not names or len(set(names)) != len(names):
            raise ValueError("an object has at least one tensor, and no two of one name")
        keys = [*IDENTITY, *(name for name, _ in self.facts)]
        if len(set(keys)) != len(keys):
            raise ValueError(f"metadata must have different names, got {keys}")

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors."""
        return header_template(self).payload_bytes

    @property
    def max_bytes(self) -> int:
        """Bytes of a sound object: an exact size, and so a bound for reads."""
        template = header_template(self)
        return template.header_bytes + template.payload_bytes


@attrs.frozen
class HeaderTemplate:
    """The common part of all objects of one layout.

    Attributes:
        pieces: The header around four gaps for digits: key, fingerprint, key of the block
            before the object, checksum. The header's length comes first.
        spans: `[begin, end)` of each tensor, counted from the end of the header.
    """

    pieces: tuple[bytes, bytes, bytes, bytes, bytes]
    spans: tuple[tuple[int, int], ...]

    @property
    def header_bytes(self) -> int:
        """Bytes of the header with its length, a multiple of 64."""
        return sum(map(len, self.pieces)) + 4 * DIGITS

    @property
    def payload_bytes(self) -> int:
        """Bytes of all tensors."""
        return self.spans[-1][1]

    def around_checksum(
        self, name: ObjectName, fingerprint: Fingerprint, after: bytes
    ) -> tuple[bytes, bytes]:
        """Return an object's header before and after the digits of its checksum.

        Args:
            name: The object's name.
            fingerprint: Fingerprint of the object's model.
            after: Digits of the key of the block before the object.
        """
        start, first, second, third, rest = self.pieces
        key, model = digits(name.key), digits(fingerprint)
        return b"".join((start, key, first, model, second, after, third)), rest

    def after_of(self, header: bytes) -> bytes:
        """Return the digits in a header at the position of `after`."""
        begin = sum(map(len, self.pieces[:3])) + 2 * DIGITS
        return header[begin : begin + DIGITS]


def digits(key: ColdKey | Fingerprint) -> bytes:
    """Return a key or a fingerprint in the hexadecimal form of a header."""
    return key.hex().encode()


def _spans(layout: ObjectLayout) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    begin = 0
    for tensor in layout.tensors:
        spans.append((begin, begin + tensor.num_bytes))
        begin += tensor.num_bytes
    return spans


@functools.lru_cache(maxsize=128)
def header_template(layout: ObjectLayout) -> HeaderTemplate:
    """Return the common part of all objects of `layout`.

    Raises:
        ValueError: The header would exceed `MAX_HEADER_BYTES`.
    """
    blank = "0" * DIGITS
    identity = dict.fromkeys(IDENTITY, blank) | {"abi": ABI, "group": layout.group.value}
    header: dict[str, Any] = {METADATA: identity | dict(layout.facts)}
    spans = _spans(layout)
    for tensor, span in zip(layout.tensors, spans, strict=True):
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": span,
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    # the payload begins at a multiple of the alignment, for readers that map the file
    length = len(text) + -(LENGTH_BYTES + len(text)) % _ALIGNMENT
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header takes at most {MAX_HEADER_BYTES} bytes, not {length}")
    raw = length.to_bytes(LENGTH_BYTES, "little") + text.ljust(length)
    start, first, second, third, rest = raw.split(blank.encode(), 4)
    return HeaderTemplate((start, first, second, third, rest), tuple(spans))
