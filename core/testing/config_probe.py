"""Probes of a family's parser: a config.json with one fault."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from ..catalogue import Family
from ..contract.errors import ConfigError, UnsupportedModelError

KeyPath: TypeAlias = tuple[str, ...]

EDGES: tuple[float, ...] = (
    *(-2, -1, 0, 1, 2**20, 2**31 - 1, 2**31, 4 * 10**12, 10**400),
    *(-1.0, 0.0, 5e-324, 1e-30, 1e30, 1e308, float("inf"), float("nan")),
)
"""Numbers at the edges of integer and float types."""


def key_paths(raw: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every key, those of nested mappings included."""
    for key, value in raw.items():
        yield (*prefix, key)
        if isinstance(value, Mapping):
            yield from key_paths(value, (*prefix, key))


def number_paths(raw: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yield the path of every number, and of every list that begins with one."""
    for path in key_paths(raw):
        value = value_at(raw, path)
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int | float) and not isinstance(first, bool):
            yield path


def with_number(raw: Mapping[str, Any], path: KeyPath, number: float) -> dict[str, Any]:
    """Return a deep copy with a number at `path`, or at the head of the list at `path`."""
    value = value_at(raw, path)
    return replaced(raw, path, [number, *value[1:]] if isinstance(value, list) else number)


def _parent(raw: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    for key in path[:-1]:
        raw = raw[key]
    return raw


def value_at(raw: Mapping[str, Any], path: KeyPath) -> Any:
    """Return the value at `path`."""
    return _parent(dict(raw), path)[path[-1]]


def without(raw: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    """Return a deep copy that lacks the key at `path`."""
    changed = copy.deepcopy(dict(raw))
    del _parent(changed, path)[path[-1]]
    return changed


def replaced(raw: Mapping[str, Any], path: KeyPath, value: Any) -> dict[str, Any]:
    """Return a deep copy with another value at `path`."""
    changed = copy.deepcopy(dict(raw))
    _parent(changed, path)[path[-1]] = value
    return changed


def mistyped(value: Any) -> Any:
    """Return a value of another type; for null a bool, which few keys accept."""
    if value is None:
        return True
    return "mistyped" if isinstance(value, int | float) else 13


def wipe(raw: dict[str, Any]) -> None:
    """Empty a mapping with all nested values, so that kept references show."""
    for value in raw.values():
        if isinstance(value, dict):
            wipe(value)
        elif isinstance(value, list):
            value.clear()
    raw.clear()


@attrs.frozen
class Refusal:
    """A family's error for a config, comparable by value, unlike exceptions.

    Attributes:
        kind: Class of the error.
        key: Path of the key of a `ConfigError`.
        sentence: Message of the error.
    """

    kind: type[Exception]
    key: str
    sentence: str

    @classmethod
    def of(cls, error: ConfigError | UnsupportedModelError) -> Refusal:
        """Return the refusal with the values of an error."""
        key = error.key if isinstance(error, ConfigError) else ""
        return cls(type(error), key, str(error))


def outcome(family: Family, raw: Mapping[str, Any]) -> Any:
    """Return the family's config, or the `Refusal`."""
    try:
        return family.parse_config(raw)
    except (ConfigError, UnsupportedModelError) as error:
        return Refusal.of(error)


def refuses(found: Any, path: KeyPath) -> bool:
    """Return whether an outcome is an error because of the key at `path`.

    Either the key is the error's own, or the message names the key: a contradiction involves
    two keys, and a missing key may be reported under either of its names.
    """
    if not isinstance(found, Refusal):
        return False
    if found.kind is UnsupportedModelError or path[-1] in found.key.split("."):
        return True
    return re.search(rf"\b{re.escape(path[-1])}\b", found.sentence) is not None


def is_described(family: Family, config: Any) -> bool:
    """Return whether all hooks accept a config and return usable counts."""
    shape = family.model_shape(config)
    family.declare_cache_groups(config)
    family.build_sidecar_policy(config, "float32")
    family.execution_plan(config)
    family.output_protocol(config)
    counts = (shape.vocab_size, shape.max_context, shape.num_layers)
    return all(0 < count < 2**31 for count in counts)


def edge_configs(
    family: Family, raw: Mapping[str, Any]
) -> Iterator[tuple[KeyPath, float, Any]]:
    """Yield path, number and config for each edge number that a family accepts."""
    seen = [family.parse_config(raw)]
    for path in number_paths(raw):
        for number in EDGES:
            found = outcome(family, with_number(raw, path, number))
            if not isinstance(found, Refusal) and found not in seen:
                seen.append(found)
                yield path, number, found
