"""The key-value pairs of a GGUF file: located in one pass, decoded on demand."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from ..errors import CheckpointError

SCALARS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Type number -> struct code."""

STRING = 8
ARRAY = 9


class Cursor:
    """Reads a buffer from front to back, never past its end.

    Attributes:
        buffer: The whole file.
        position: Offset of the next byte.
    """

    def __init__(self, buffer: Any, position: int = 0) -> None:
        self.buffer = buffer
        self.position = position

    def skip(self, num_bytes: int) -> int:
        """Advance by `num_bytes` and return the position before.

        Raises:
            ValueError: Fewer than `num_bytes` bytes are left.
        """
        begin = self.position
        left = len(self.buffer) - begin
        if num_bytes > left:
            raise ValueError(f"is truncated: {num_bytes} bytes at {begin}, {left} are left")
        self.position = begin + num_bytes
        return begin

    def number(self, code: str) -> Any:
        """Read one little-endian number with the struct code `code`."""
        layout = f"<{code}"
        begin = self.skip(struct.calcsize(layout))
        return struct.unpack_from(layout, self.buffer, begin)[0]

    def numbers(self, code: str, count: int) -> list[Any]:
        """Read `count` numbers."""
        num_bytes = count * struct.calcsize(f"<{code}")
        begin = self.skip(num_bytes)
        return list(struct.unpack_from(f"<{count}{code}", self.buffer, begin))

    def skip_text(self) -> None:
        """Advance past a string."""
        self.skip(self.number("Q"))

    def text(self) -> str:
        """Read a string."""
        num_bytes = self.number("Q")
        begin = self.skip(num_bytes)
        return bytes(self.buffer[begin : begin + num_bytes]).decode()


@attrs.frozen
class _Value:
    """The place of a value: `count` elements of `kind`; None for a single value."""

    kind: int
    position: int
    count: int | None


def _check_kind(kind: int) -> None:
    if kind not in SCALARS and kind != STRING:
        raise ValueError(f"has the unknown type {kind}")


def _skip_value(cursor: Cursor) -> _Value:
    kind: int = cursor.number("I")
    count: int | None = None
    if kind == ARRAY:
        kind, count = cursor.number("I"), cursor.number("Q")
    _check_kind(kind)
    value = _Value(kind, cursor.position, count)
    elements = 1 if count is None else count
    if kind in SCALARS:
        cursor.skip(elements * struct.calcsize(f"<{SCALARS[kind]}"))
        return value
    # A string has at least eight bytes, so a false count is found without a loop.
    cursor.skip(elements * 8)
    cursor.position = value.position
    for _ in range(elements):
        cursor.skip_text()
    return value


def _decode(cursor: Cursor, value: _Value) -> list[Any]:
    elements = 1 if value.count is None else value.count
    if value.kind == STRING:
        return [cursor.text() for _ in range(elements)]
    return cursor.numbers(SCALARS[value.kind], elements)


class Metadata(Mapping[str, Any]):
    """Key -> value; each access decodes the value anew.

    Values are ints, floats, bools, strings and lists of these. Access to a string that is not
    UTF-8 raises `CheckpointError`.
    """

    def __init__(self, buffer: Any, values: Mapping[str, _Value]) -> None:
        self._buffer = buffer
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        try:
            decoded = _decode(Cursor(self._buffer, value.position), value)
        except UnicodeDecodeError as error:
            raise CheckpointError(f"GGUF metadata: {key}: is not UTF-8: {error}") from error
        return decoded[0] if value.count is None else decoded

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Locate `count` key-value pairs, and leave the cursor behind them.

    Raises:
        ValueError: The buffer ends early, a key is repeated, or a type is unknown.
    """
    values: dict[str, _Value] = {}
    for _ in range(count):
        key = cursor.text()
        if key in values:
            raise ValueError(f"key {key!r} is repeated")
        try:
            values[key] = _skip_value(cursor)
        except ValueError as error:
            raise ValueError(f"key {key!r}: {error}") from error
    return Metadata(cursor.buffer, values)
