"""config.json as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..errors import ConfigError, SettingsError
from ..structuring import strict_converter, structure

T = TypeVar("T")

# A config.json has many keys that a family does not need.
_CONVERTER = strict_converter(forbid_extra_keys=False)


def read_config(raw: Mapping[str, Any], cls: type[T]) -> T:
    """Return the keys of `raw` that `cls` names, typed; a null counts as missing.

    Raises:
        ConfigError: Naming the first key that is missing, mistyped or out of range.
    """
    try:
        return structure({k: v for k, v in raw.items() if v is not None}, cls, _CONVERTER)
    except SettingsError as error:
        key, _, reason = error.findings[0].partition(": ")
        raise ConfigError(key, reason) from error
