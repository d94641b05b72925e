"""JSON objects that must not hide a damaged file."""

from __future__ import annotations

import math

import pytest

from neve.checkpoint.strict_json import JSONError, parse_object


def test_bare_numbers():
    """`Infinity` and `NaN`, which config.json files do contain, are numbers."""
    value = parse_object(b'{"limit": [0.0, Infinity], "x": NaN}')

    assert value["limit"] == [0.0, math.inf]
    assert math.isnan(value["x"])


@pytest.mark.parametrize(
    ("text", "key"), [(b'{"a": 1, "a": 1}', "a"), (b'{"t": {"b": 1, "b": 2}}', "b")]
)
def test_a_key_that_stands_twice(text, key):
    """A duplicate key is refused and named, also inside."""
    with pytest.raises(JSONError, match="is repeated") as caught:
        parse_object(text)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b'"x"', b"{", b"\xff{}", b'{"a":' * 5000, b'{"a":' + b"9" * 5000],
)
def test_no_object(text):
    """What is no JSON object is refused, however deep or long."""
    with pytest.raises(JSONError):
        parse_object(text)
