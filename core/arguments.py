"""Arguments of public functions as plain values, or an error that names the argument.

A caller's object may be of any type and may raise from any method. Each function here looks at
the object once and returns a value of an exact builtin type, so that no method of the caller's
runs later, on another thread.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from .errors import NeveError, RequestError, shown

T = TypeVar("T")

_LONGEST_WAIT_S = threading.TIMEOUT_MAX / 2
"""The platform's locks refuse to wait for longer than twice this time."""


def wrong(param: str, got: object, expected: str) -> RequestError:
    """Return the error for an argument of the wrong type or range.

    Args:
        param: The argument's name.
        got: Its value.
        expected: What would be right, as the end of "must be ...".
    """
    sentence = f"{param} must be {expected}, got {shown(got)}"
    return RequestError(sentence, code=f"invalid_{param}", param=param)


@contextmanager
def reading(param: str) -> Generator[None]:
    """Turn whatever an argument's own methods raise into an error that names the argument.

    Raises:
        RequestError: The argument raised something.
    """
    try:
        yield
    except NeveError:
        raise
    except Exception as error:
        sentence = f"{param} cannot be read: {type(error).__name__}: {shown(error)}"
        raise RequestError(sentence, code=f"invalid_{param}", param=param) from error


def text(param: str, value: object) -> str:
    """Return a string argument.

    Raises:
        RequestError: The value is no string.
    """
    with reading(param):
        if isinstance(value, str):
            return str.__str__(value)
        raise wrong(param, value, "a string")


def optional_text(param: str, value: object) -> str | None:
    """Return a string argument that may be None.

    Raises:
        RequestError: The value is neither.
    """
    return None if value is None else text(param, value)


def flag(param: str, value: object) -> bool:
    """Return an argument that is True or False.

    Raises:
        RequestError: The value is neither.
    """
    if value is True or value is False:
        return value
    raise wrong(param, value, "True or False")


def integer(param: str, value: object, low: int) -> int:
    """Return an integer argument of at least `low`.

    Raises:
        RequestError: The value is no integer, or too small.
    """
    with reading(param):
        if isinstance(value, int) and not isinstance(value, bool) and value >= low:
            return operator.index(value)
        raise wrong(param, value, f"an integer of at least {low}")


def seconds(param: str, value: object) -> float:
    """Return an argument that is a time in seconds; a negative time counts as 0.

    Raises:
        RequestError: The value is no number.
    """
    with reading(param):
        # NaN differs from itself
        if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
            return float(min(max(value, 0), _LONGEST_WAIT_S))
        raise wrong(param, value, "a number of seconds")


def optional_seconds(param: str, value: object) -> float | None:
    """Return a time in seconds, or None, which means for ever.

    Raises:
        RequestError: The value is neither.
    """
    return None if value is None else seconds(param, value)


def path(param: str, value: object) -> Path:
    """Return an argument that names a file or a folder.

    Raises:
        RequestError: The value is no path, is empty, or has characters that no path may have.
    """
    with reading(param):
        if not isinstance(value, str | Path):
            raise wrong(param, value, "a path")
        spelled = str(value)
        if fault := path_fault(spelled):
            raise wrong(param, value, f"a path, and {fault}")
        return Path(spelled)


def path_fault(spelled: str) -> str | None:
    """Return why a text can be no path, None if it can."""
    if not spelled.strip():
        return "an empty text is none"
    if "\0" in spelled:
        return "no path holds a NUL character"
    try:
        os.fsencode(spelled)
    except UnicodeEncodeError:
        return "no path holds a lone surrogate"
    return None


def instance(param: str, value: object, kind: type[T], expected: str) -> T:
    """Return an argument that is a `kind`.

    Args:
        param: The argument's name.
        value: Its value.
        kind: The type.
        expected: The type in words, as the end of "must be ...".

    Raises:
        RequestError: The value is something else.
    """
    with reading(param):
        if isinstance(value, kind):
            return value
        raise wrong(param, value, expected)


def items(
    param: str, value: Any, kinds: type[T] | tuple[type[T], ...], expected: str
) -> list[T]:
    """Return the items of an argument that is iterable.

    Args:
        param: The argument's name.
        value: Its value.
        kinds: The types that an item may have.
        expected: The argument in words, as the end of "must be ...".

    Raises:
        RequestError: The value is not iterable, or has an item of another type.
    """
    taken: list[T] = []
    with reading(param):
        for item in value if isinstance(value, Iterable) else [value]:
            if not isinstance(item, kinds) or item is value:
                raise wrong(param, value, expected)
            taken.append(item)
    return taken


def function(param: str, value: Any) -> Callable[..., Any]:
    """Return an argument that can be called.

    Raises:
        RequestError: The value cannot.
    """
    with reading(param):
        if callable(value):
            return value
        raise wrong(param, value, "a function")
