"""Cold objects as bytes: a safetensors file that proves what it is and that it is whole.

    [0, 8)      length of the header, little-endian
    [8, h)      the header, JSON padded with spaces so that h is a multiple of 64
    [h, end)    the tensors' bytes without a gap, in the header's order

The header's metadata names the object (abi, group, key), the model that it belongs to
(fingerprint), the block that it comes after, the geometry, and the checksum: the SHA-256 of
the file without the checksum's own 64 digits. It so covers every other byte, each tensor's
name, dtype, shape and place included, and the length in front keeps header and payload apart.

Nothing that a file claims is relied on. A reader knows the one header that a sound file can
have and compares bytes; it parses a header only to say why it rejected it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...errors import ObjectRejectedError
from ...ids import ColdKey, Fingerprint
from .facts import PEEK_BYTES, ObjectFacts, peek, read_facts
from .geometry import KvGeometry, encode_tokens, kv_layout, sidecar_layout
from .header import (
    ABI,
    DIGITS,
    HeaderTemplate,
    ObjectLayout,
    TensorSpec,
    digits,
    header_template,
)
from .keys import KEY_BYTES, ROOT, ColdGroup, ObjectName

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "ABI",
    "PEEK_BYTES",
    "KvGeometry",
    "ObjectFacts",
    "ObjectLayout",
    "TensorSpec",
    "decode",
    "decode_block",
    "encode",
    "encode_tokens",
    "kv_layout",
    "peek",
    "read_facts",
    "sidecar_layout",
    "verify_object",
]


def _checksum(before: bytes, rest: bytes, payload: Iterable[memoryview]) -> bytes:
    digest = hashlib.sha256(before + rest)
    for piece in payload:
        digest.update(piece)
    return digest.hexdigest().encode()


def _template(
    name: ObjectName, fingerprint: Fingerprint, layout: ObjectLayout
) -> HeaderTemplate:
    """Return the layout's template; the caller's arguments must go together."""
    if name.group is not layout.group:
        raise ValueError(f"{name.file_name} is no place for {layout.group.value} state")
    if len(name.key) != KEY_BYTES or len(fingerprint) != KEY_BYTES:
        raise ValueError(f"a key and a fingerprint have {KEY_BYTES} bytes each")
    return header_template(layout)


def encode(
    name: ObjectName,
    fingerprint: Fingerprint,
    layout: ObjectLayout,
    payload: Sequence[Buffer],
    after: ColdKey = ROOT,
) -> list[Buffer]:
    """Return an object in pieces: its header, then flat views of the payload, not copied.

    The interpreter's lock is released while a piece is hashed.

    Args:
        name: Which object it is.
        fingerprint: Of the model that it belongs to.
        layout: Its tensors.
        payload: Each tensor's bytes, in the layout's order.
        after: Key of the block that it comes after; see `header.IDENTITY`.

    Raises:
        ValueError: A piece is missing, left over or of the wrong size.
    """
    template = _template(name, fingerprint, layout)
    pieces = [memoryview(piece).cast("B") for piece in payload]
    sizes = [piece.nbytes for piece in pieces]
    expected = [end - begin for begin, end in template.spans]
    if sizes != expected:
        raise ValueError(f"the payload must be pieces of {expected} bytes, got {sizes}")
    before, rest = template.around_checksum(name, fingerprint, digits(after))
    return [b"".join((before, _checksum(before, rest, pieces), rest)), *pieces]


def decode(
    data: Buffer, name: ObjectName, fingerprint: Fingerprint, layout: ObjectLayout
) -> list[memoryview]:
    """Return each tensor's bytes, in the layout's order, as views of `data`.

    Args:
        data: The whole object; one of more than `layout.max_bytes` bytes is rejected.
        name: Which object it must be.
        fingerprint: Of the model that it must belong to.
        layout: What it must consist of.

    Raises:
        ObjectRejectedError: It is not that object, whole and unchanged.
    """
    template = _template(name, fingerprint, layout)
    view = memoryview(data).cast("B")
    header = bytes(view[: template.header_bytes])
    before, rest = template.around_checksum(name, fingerprint, template.after_of(header))
    checksum = header[len(before) : len(before) + DIGITS]
    if view.nbytes != layout.max_bytes or header != before + checksum + rest:
        raise _mismatch(view, name, fingerprint, layout)
    payload = view[template.header_bytes :]
    if checksum != _checksum(before, rest, [payload]):
        raise ObjectRejectedError("checksum", "its bytes are not those that were written")
    return [payload[begin:end] for begin, end in template.spans]


def _misfiled(facts: ObjectFacts, name: ObjectName) -> ObjectRejectedError:
    return ObjectRejectedError(
        "format", f"it must be {name.file_name}, and says that it is {facts.name.file_name}"
    )


def _mismatch(
    view: memoryview, name: ObjectName, fingerprint: Fingerprint, layout: ObjectLayout
) -> ObjectRejectedError:
    """Return why an object is not the expected one, as far as its header is sound."""
    try:
        facts = peek(view)
    except ObjectRejectedError as error:
        return error
    if facts.name != name:
        return _misfiled(facts, name)
    if facts.fingerprint != fingerprint:
        return ObjectRejectedError("fingerprint", "it must belong to this model, not another")
    if facts.layout != layout:
        return ObjectRejectedError("layout", "it must have this model's tensors, not others")
    return ObjectRejectedError(
        "format", f"it must have {layout.max_bytes} bytes, not {view.nbytes}"
    )


def decode_block(
    data: Buffer,
    name: ObjectName,
    fingerprint: Fingerprint,
    layout: ObjectLayout,
    tokens: Sequence[int],
) -> list[memoryview]:
    """Return the keys and values of a KV block, key before value, layer by layer.

    Args:
        data: The whole object.
        name: Which object it must be.
        fingerprint: Of the model that it must belong to.
        layout: A layout that `kv_layout` made.
        tokens: The block's token ids.

    Raises:
        ObjectRejectedError: As `decode`, or the object holds other tokens.
        ValueError: The layout is a sidecar's.
    """
    if layout.group is not ColdGroup.KV:
        raise ValueError(f"{layout.group.value} state has no tokens")
    stored, *layers = decode(data, name, fingerprint, layout)
    if bytes(stored) != encode_tokens(tokens):
        raise ObjectRejectedError("layout", "it must hold the tokens asked for, not others")
    return layers


def verify_object(data: Buffer, name: ObjectName) -> ObjectFacts:
    """Return what an object says of itself, its checksum and its own claims verified.

    Whether a model would accept it is another question: its fingerprint and layout are the
    object's word.

    Raises:
        ObjectRejectedError: It is not whole and unchanged, or it is another object.
    """
    facts = peek(data)
    if facts.name != name:
        raise _misfiled(facts, name)
    decode(data, name, facts.fingerprint, facts.layout)
    return facts
