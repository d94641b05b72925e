"""Configs with one thing wrong."""

from __future__ import annotations

from typing import Any

from neve.contract.errors import ConfigError, UnsupportedModelError
from neve.testing.config_probe import (
    key_paths,
    mistyped,
    refuses,
    replaced,
    value_at,
    wipe,
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

    assert refuses(ConfigError("rope.factor", "missing"), path)
    assert refuses(UnsupportedModelError("no such variant"), path)
    assert not refuses(ConfigError("rope.fact", "missing"), path)
    assert not refuses("a config", path)
