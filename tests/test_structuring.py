"""Plain data as typed values: every fault is a sentence with its path."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from neve.errors import SettingsError
from neve.structuring import strict_converter, structure


@attrs.frozen
class Inner:
    size: int = attrs.field(validator=attrs.validators.ge(1))


def _below_limit(self: Any, _: Any, value: int) -> None:
    if value > self.limit:
        raise ValueError(f"low must not exceed {self.limit}")


@attrs.frozen
class Outer:
    inner: Inner
    limit: int = 10
    low: int = attrs.field(default=0, validator=_below_limit)


def test_findings_of_nested_values_have_their_whole_path() -> None:
    """A reader of config.json is told where in it the fault lies."""
    converter = strict_converter(forbid_extra_keys=False)
    with pytest.raises(SettingsError) as caught:
        structure({"inner": {"size": 0}, "limit": "x", "other": 1}, Outer, converter)

    assert caught.value.findings == (
        "inner.size: must be >= 1: 0",
        "limit: must be an integer, got 'x'",
    )


def test_a_missing_key_is_named() -> None:
    """A required key that is absent is a finding as well."""
    converter = strict_converter(forbid_extra_keys=True)
    with pytest.raises(SettingsError) as caught:
        structure({"inner": {}, "limmit": 1}, Outer, converter)

    assert caught.value.findings == (
        "inner.size: required key is missing",
        "limmit: unknown key; did you mean limit?",
    )


def test_a_validator_may_compare_fields() -> None:
    """A validator that looks at its instance runs when there is one."""
    converter = strict_converter(forbid_extra_keys=False)

    assert structure({"inner": {"size": 1}, "low": 3}, Outer, converter).low == 3
    with pytest.raises(SettingsError, match="low must not exceed 10"):
        structure({"inner": {"size": 1}, "low": 11}, Outer, converter)
