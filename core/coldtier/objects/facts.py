"""An object's own description, for readers that do not know the object's model."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ...errors import ObjectRejectedError
from ...ids import ColdKey, Fingerprint
from .header import (
    ABI,
    DIGITS,
    IDENTITY,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA,
    ObjectLayout,
    TensorSpec,
    digits,
    header_template,
)
from .keys import KEY_BYTES, ColdGroup, ObjectName

if TYPE_CHECKING:
    from typing_extensions import Buffer

PEEK_BYTES = LENGTH_BYTES + MAX_HEADER_BYTES
"""Bytes of an object that `peek` needs at most."""

_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}


@attrs.frozen
class ObjectFacts:
    """An object's own description.

    Attributes:
        abi: The format and its version.
        name: Name of the object.
        fingerprint: Fingerprint of the object's model.
        after: Key of the block before the object; see `header.IDENTITY`.
        layout: The object's tensors and the rest of its metadata.
        num_bytes: Bytes of the whole object.
    """

    abi: str
    name: ObjectName
    fingerprint: Fingerprint
    after: ColdKey
    layout: ObjectLayout
    num_bytes: int


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a key of the header is repeated")
    return unique


def _parse_json(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        raise ValueError("the header is no JSON object")
    try:
        return json.loads(raw, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("the header nests too deeply") from error


def _parse_tensor(name: str, raw: Any) -> TensorSpec:
    if not isinstance(raw, dict) or set(raw) != _ENTRY_KEYS:
        raise ValueError(f"tensor {name!r} must have {', '.join(sorted(_ENTRY_KEYS))}")
    if not (isinstance(raw["dtype"], str) and isinstance(raw["shape"], list)):
        raise ValueError(  # noqa: TRY004  a fault of the file, not of a caller
            f"tensor {name!r} must have a string as dtype and a list as shape"
        )
    return TensorSpec(name, raw["dtype"], raw["shape"])


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"{METADATA} must be an object of strings")
    missing = [name for name in IDENTITY if name not in metadata]
    if missing:
        raise ValueError(f"{METADATA} lacks {', '.join(missing)}")
    if metadata["abi"] != ABI:
        raise ValueError(f"the format must be {ABI!r}, not {metadata['abi'][:40]!r}")


def _parse_digest(metadata: Mapping[str, str], name: str) -> bytes:
    digest = bytes.fromhex(metadata[name])
    if len(digest) != KEY_BYTES:
        raise ValueError(f"{name} must have {KEY_BYTES} bytes, not {len(digest)}")
    return digest


def _parse_header(raw: bytes) -> ObjectFacts:
    header = _parse_json(raw)
    metadata: Mapping[str, str] = header.pop(METADATA, None)
    _check_metadata(metadata)
    group = ColdGroup(metadata["group"])
    facts = [(name, value) for name, value in metadata.items() if name not in IDENTITY]
    tensors = [_parse_tensor(name, entry) for name, entry in header.items()]
    layout = ObjectLayout(group, tensors, facts)
    return ObjectFacts(
        abi=metadata["abi"],
        name=ObjectName(ColdKey(_parse_digest(metadata, "key")), group),
        fingerprint=Fingerprint(_parse_digest(metadata, "fingerprint")),
        after=ColdKey(_parse_digest(metadata, "after")),
        layout=layout,
        num_bytes=layout.max_bytes,
    )


def _check_canonical(header: bytes, facts: ObjectFacts) -> None:
    """Raise unless `header`, except for its checksum, is the header that neve would write.

    The comparison covers everything that the parser accepts too freely, above all offsets.
    """
    template = header_template(facts.layout)
    before, rest = template.around_checksum(facts.name, facts.fingerprint, digits(facts.after))
    checksum = header[len(before) : len(before) + DIGITS]
    if header != before + checksum + rest:
        raise ValueError("the header is not as neve writes it")


def _read_header(data: memoryview) -> ObjectFacts:
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header takes at most {MAX_HEADER_BYTES} bytes, not {length}")
    header = bytes(data[: LENGTH_BYTES + length])
    if len(header) < LENGTH_BYTES + length:
        raise ValueError(f"{len(header)} bytes are too few for the header")
    facts = _parse_header(header[LENGTH_BYTES:])
    _check_canonical(header, facts)
    return facts


def peek(data: Buffer) -> ObjectFacts:
    """Return an object's own description from its header alone, without the checksum.

    Costs at most the parsing of `MAX_HEADER_BYTES`, whatever the header claims.

    Args:
        data: The object, or its first `PEEK_BYTES` bytes.

    Raises:
        ObjectRejectedError: The header is not one that this version writes.
    """
    try:
        return _read_header(memoryview(data).cast("B"))
    except ValueError as error:
        raise ObjectRejectedError("format", str(error)) from error


def read_facts(path: Path) -> ObjectFacts:
    """Return the description of the object in a file; only the header is read.

    Raises:
        ObjectRejectedError: As `peek`, or the file is not a regular one.
        OSError: The file cannot be opened; links are not followed.
    """
    # without O_NONBLOCK, opening a pipe waits for its writer
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ObjectRejectedError("format", f"{path} must be a regular file")
        return peek(file.read(PEEK_BYTES))
