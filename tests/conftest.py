"""What holds for every test of the core."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from structlog.testing import capture_logs

from neve.log import configure

# a busy machine is no fault of the code: time is never a criterion
settings.register_profile("neve", deadline=None)
settings.load_profile("neve")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Log as after the first `neve.load`, before every test and after the last one.

    `capture_logs` in a process that has not configured structlog leaves it configured with
    its defaults, which write to stdout.
    """
    configure()
    yield
    configure()


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """Capture every event at or above INFO."""
    configure(logging.INFO)
    with capture_logs() as events:
        yield events


class HostileError(Exception):
    """What a hostile object raises."""


def _hostile_class(error: type[BaseException]) -> type[Any]:
    """Return a class of which every method that Python looks up raises `error`."""

    def raises(*_: Any, **__: Any) -> Any:
        raise error("hostile")

    names = {name for kind in (int, float, str, dict, list) for name in dir(kind)}
    names |= {"__call__", "__await__", "__next__", "__enter__", "__exit__", "__index__"}
    names |= {"__complex__", "__fspath__", "__bool__", "__float__", "__int__", "__set_name__"}
    kept = {"__new__", "__init__", "__init_subclass__", "__subclasshook__", "__class__"}
    kept |= {"__class_getitem__", "__doc__", "__dict__", "__del__"}
    methods = {name: raises for name in names - kept if name.startswith("__")}
    return type("Hostile", (), {**methods, "error": error})


@pytest.fixture(scope="session")
def hostile() -> Any:
    """An object that raises from each of its methods; even `isinstance` makes it raise."""
    return _hostile_class(HostileError)()


@pytest.fixture(scope="session")
def hostile_base() -> Any:
    """A hostile object whose error is no `Exception`."""
    return _hostile_class(type("HostileInterrupt", (BaseException,), {}))()
