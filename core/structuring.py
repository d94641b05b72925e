"""Plain data as typed values, and every fault of it as a sentence with its path."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn, override

from .errors import SettingsError, shown

T = TypeVar("T")


def _strict_int(value: Any, _: Any) -> int:
    # cattrs would turn 16.9 and True into numbers
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"must be an integer, got {shown(value)}")
    return value


def _strict_bool(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"must be true or false, got {shown(value)}")
    return value


def _strict_float(value: Any, _: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"must be a number, got {shown(value)}")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"must fit into a float, got {shown(value)}") from error
    if not math.isfinite(number):
        raise ValueError(f"must be finite, got {shown(value)}")
    return number


def _strict_str(value: Any, _: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be a string, got {shown(value)}")
    return value


def _validating(field: attrs.Attribute[Any], converter: cattrs.Converter) -> Any:
    """Return the rule by which a field is structured: with its validator at once.

    A class's constructor stops at its first wrong field and does not say where it is. A
    validator that is a function may look at its instance, so it is left to the constructor.
    """
    validate = field.validator
    if validate is None or inspect.isfunction(validate):
        return override()

    def structure_and_validate(value: Any, kind: Any) -> Any:
        value = converter.structure(value, kind)
        validate(None, field, value)
        return value

    return override(struct_hook=structure_and_validate)


def strict_converter(*, forbid_extra_keys: bool) -> cattrs.Converter:
    """Return a converter that takes no number for another and no number for a bool.

    It finds every field that is mistyped or out of range, not just the first.
    """
    converter = cattrs.Converter(forbid_extra_keys=forbid_extra_keys)

    def structure_class(cls: type[Any]) -> Any:
        rules = {field.name: _validating(field, converter) for field in attrs.fields(cls)}
        return make_dict_structure_fn(
            cls, converter, _cattrs_forbid_extra_keys=forbid_extra_keys, **rules
        )

    converter.register_structure_hook_factory(attrs.has, structure_class)
    converter.register_structure_hook(int, _strict_int)
    converter.register_structure_hook(bool, _strict_bool)
    converter.register_structure_hook(float, _strict_float)
    converter.register_structure_hook(str, _strict_str)
    return converter


def _sentence(error: BaseException, kind: type | None) -> str:
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        known = [f.name for f in attrs.fields(error.cl)]
        parts: list[str] = []
        for key in sorted(error.extra_fields):
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            parts.append(f"{key}: unknown key; {hint}")
        return "; ".join(parts)
    if isinstance(error, KeyError):
        return "required key is missing"
    return str(error.args[0]) if error.args else type(error).__name__


def explain(error: BaseException) -> list[str]:
    """Return one sentence a finding of a cattrs validation error, each with its path."""
    findings: list[str] = []
    for line in cattrs.transform_error(error, format_exception=_sentence):
        sentence, _, path = line.rpartition(" @ $")
        path = path.lstrip(".")
        sentence = sentence.removeprefix(f"'{path.rpartition('.')[2]}' ")  # as attrs begins
        findings.append(f"{path}: {sentence}" if path else sentence)
    return findings


def structure(raw: Mapping[str, Any], cls: type[T], converter: cattrs.Converter) -> T:
    """Return `raw` as a `cls`.

    Raises:
        SettingsError: With every finding.
    """
    try:
        return converter.structure(raw, cls)
    except cattrs.BaseValidationError as error:
        raise SettingsError(explain(error)) from error
