"""What a family makes of a config.json with one thing wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ..contract.errors import ConfigError, UnsupportedModelError
from ..families import Family

KeyPath: TypeAlias = tuple[str, ...]


def key_paths(raw: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every key, those of nested mappings included."""
    for key, value in raw.items():
        yield (*prefix, key)
        if isinstance(value, Mapping):
            yield from key_paths(value, (*prefix, key))


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
    """Return a value of another type; instead of null a bool, which few keys may be."""
    if value is None:
        return True
    return "mistyped" if isinstance(value, int | float) else 13


def wipe(raw: dict[str, Any]) -> None:
    """Empty a mapping and all that it holds, for whoever has kept a reference to notice."""
    for value in raw.values():
        if isinstance(value, dict):
            wipe(value)
        elif isinstance(value, list):
            value.clear()
    raw.clear()


def outcome(family: Family, raw: Mapping[str, Any]) -> Any:
    """Return the family's config, or the typed error that it raised."""
    try:
        return family.parse_config(raw)
    except (ConfigError, UnsupportedModelError) as error:
        return error


def refuses(found: Any, path: KeyPath) -> bool:
    """Return whether an outcome is an error on account of the key at `path`."""
    if isinstance(found, ConfigError):
        return path[-1] in found.key.split(".")
    return isinstance(found, UnsupportedModelError)
