"""Configs with one thing wrong."""

from __future__ import annotations

from typing import Any

from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.testing.config_probe import (
    Refusal,
    key_paths,
    mistyped,
    number_paths,
    refuses,
    replaced,
    value_at,
    wipe,
    with_number,
    without,
)

RAW = {"a": 1, "b": {"c": None, "d": {"e": "x"}}, "f": [1]}


def test_every_key_is_reached():
    """FW-6: nested keys are probed too."""
    paths = list(key_paths(RAW))

    assert paths == [("a",), ("b",), ("b", "c"), ("b", "d"), ("b", "d", "e"), ("f",)]
    assert value_at(RAW, ("b", "d", "e")) == "x"


def test_changes_leave_the_original():
    """FW-6: each probe starts from the sound config."""
    assert without(RAW, ("b", "d", "e")) == {"a": 1, "b": {"c": None, "d": {}}, "f": [1]}
    assert replaced(RAW, ("b", "c"), 5)["b"] == {"c": 5, "d": {"e": "x"}}
    assert RAW == {"a": 1, "b": {"c": None, "d": {"e": "x"}}, "f": [1]}


def test_values_change_their_type():
    """FW-6: a number becomes text, anything else a number; null may stand for a number."""
    values = (1, 1.5, True, "x", [1], {"a": 1}, None)

    assert [mistyped(v) for v in values] == ["mistyped"] * 3 + [13] * 3 + [True]


def test_wiping_reaches_everything():
    """FW-6: whoever kept a part of a config sees it go."""
    raw: dict[str, Any] = {"a": 1, "b": {"c": [1, 2]}}
    inner, deepest = raw["b"], raw["b"]["c"]
    wipe(raw)

    assert (raw, inner, deepest) == ({}, {}, [])


def test_an_error_must_be_about_the_key():
    """FW-6: an error that names another key does not help whoever made the mistake."""
    path = ("rope", "factor")

    assert refuses(Refusal.of(ConfigError("rope.factor", "missing")), path)
    assert refuses(Refusal.of(UnsupportedModelError("no such variant")), path)
    assert refuses(Refusal.of(ConfigError("rope", "missing (as is factor)")), path)
    assert not refuses(Refusal.of(ConfigError("rope.fact", "missing")), path)
    assert not refuses(Refusal.of(ConfigError("rope", "factors are missing")), path)
    assert not refuses("a config", path)


def test_equal_errors_are_equal():
    """FW-6: a key with another name gives one error twice, which exceptions are not."""
    one, other = (Refusal.of(ConfigError("a", "missing")) for _ in range(2))

    assert one == other
    assert one != Refusal.of(ConfigError("b", "missing"))


def test_numbers_are_found_in_lists_too():
    """FW-6: the head of a list of numbers is a number, and a bool is none."""
    raw = {"a": 1, "b": {"c": [2.0, 3], "d": True}, "e": ["x"], "f": [], "g": None}
    paths = list(number_paths(raw))

    assert paths == [("a",), ("b", "c")]
    assert with_number(raw, ("b", "c"), -1)["b"]["c"] == [-1, 3]
    assert with_number(raw, ("a",), -1)["a"] == -1
