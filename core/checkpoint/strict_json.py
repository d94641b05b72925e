"""A JSON reader that refuses repeated keys, which would hide a damaged file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class JSONError(ValueError):
    """A text is no JSON object, or repeats a key.

    Attributes:
        key: The repeated key; empty for a fault of the whole text.
        reason: Description of the fault.
    """

    def __init__(self, key: str, reason: str) -> None:
        self.key = key
        self.reason = reason
        super().__init__(f"key {key!r} {reason}" if key else reason)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise JSONError(key, "is repeated")
        unique[key] = value
    return unique


def parse_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; bare `Infinity` and `NaN` are numbers.

    Raises:
        JSONError: `data` is not UTF-8, not JSON or no object, or an object repeats a key.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique)
    except JSONError:
        raise
    except (ValueError, RecursionError) as error:
        raise JSONError("", f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise JSONError("", f"must be a JSON object, not {type(value).__name__}")
    return value
