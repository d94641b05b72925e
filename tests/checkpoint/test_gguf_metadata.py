"""The key-value part of a GGUF file."""

from __future__ import annotations

import struct

import pytest

from neve.checkpoint.gguf_metadata import Cursor, read_metadata
from neve.errors import CheckpointError


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, elements: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + elements


def read(*pairs: bytes):
    return read_metadata(Cursor(b"".join(pairs)), len(pairs))


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (0, b"\xff", 255),
        (1, b"\xff", -1),
        (2, struct.pack("<H", 65535), 65535),
        (3, struct.pack("<h", -2), -2),
        (4, struct.pack("<I", 2**32 - 1), 2**32 - 1),
        (5, struct.pack("<i", -3), -3),
        (6, struct.pack("<f", 0.5), 0.5),
        (7, b"\x01", True),
        (8, text("é"), "é"),
        (9, array(8, 2, text("a") + text("")), ["a", ""]),
        (9, array(5, 3, struct.pack("<3i", 1, -2, 3)), [1, -2, 3]),
        (9, array(7, 2, b"\x00\x01"), [False, True]),
        (9, array(6, 0, b""), []),
        (10, struct.pack("<Q", 2**64 - 1), 2**64 - 1),
        (11, struct.pack("<q", -(2**63)), -(2**63)),
        (12, struct.pack("<d", 0.1), 0.1),
    ],
)
def test_values(kind, raw, value):
    """Every type becomes a plain Python value."""
    metadata = read(pair("x", kind, raw), pair("last", 0, b"\x07"))

    assert metadata["x"] == value
    assert type(metadata["x"]) is type(value)
    assert dict(metadata) == {"x": value, "last": 7}
    assert len(metadata) == 2
    assert "x" in metadata
    assert metadata.get("y") is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (pair("x", 13, b""), "key 'x': has the unknown type 13"),
        (pair("x", 9, array(9, 1, array(0, 1, b"\x00"))), "unknown type 9"),
        (pair("x", 9, array(8, 2**63, b"")), "key 'x': is truncated"),
        (pair("x", 9, array(0, 2**63, b"")), "key 'x': is truncated"),
        (pair("x", 9, array(8, 2, text("a") + struct.pack("<Q", 2**63))), "truncated"),
        (pair("x", 8, struct.pack("<Q", 2**64 - 1)), "truncated"),
        (pair("x", 10, b"\x00"), "truncated"),
        (struct.pack("<Q", 2**63), "truncated"),
        (b"", "truncated"),
    ],
)
def test_hostile_values(raw, says):
    """Unknown types, nested arrays and false lengths are refused before they are followed."""
    with pytest.raises(ValueError, match=says):
        read(raw)


def test_a_key_that_stands_twice():
    """A duplicate key is refused."""
    with pytest.raises(ValueError, match="key 'x' is repeated"):
        read(pair("x", 0, b"\x00"), pair("x", 0, b"\x00"))


def test_bytes_that_are_no_text():
    """A string that is not UTF-8 fails when it is asked for, with its key."""
    metadata = read(pair("x", 8, text(b"\xff")))

    with pytest.raises(CheckpointError, match="x: is not UTF-8"):
        metadata["x"]
