"""How requests and the engine end: a failing part keeps no other part from its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import EngineClosedError, NeveError, shown
from .faults import FaultKind, Faults


def closed(fault: BaseException | None) -> EngineClosedError:
    """Return the error of everyone who still waits for an engine, or asks it later.

    Args:
        fault: What ended the engine; None if it was closed.
    """
    if fault is None:
        return EngineClosedError("the model was closed")
    error = EngineClosedError(
        f"the engine has ended by a fault of its own, load the model again: {said(fault)}"
    )
    error.__cause__ = fault
    return error


def step_error(error: BaseException) -> Exception:
    """Return the error of the requests that a failed step has touched."""
    return _wrapped(error, "the step failed")


def request_error(error: BaseException) -> Exception:
    """Return the error of a request whose own work has failed."""
    return _wrapped(error, "the request failed")


def run_all(
    steps: Iterable[Callable[[], object]], faults: Faults, kind: FaultKind = "closing"
) -> None:
    """Run every step of an ending, also behind one that fails; failures are counted."""
    for step in steps:
        with faults.contain(kind):
            step()


def _wrapped(error: BaseException, what: str) -> Exception:
    if isinstance(error, NeveError):
        return error
    wrapped = NeveError(f"{what}: {said(error)}")
    wrapped.__cause__ = error
    return wrapped


def said(error: BaseException) -> str:
    """Return an error in one line: its type and its sentence."""
    return f"{type(error).__name__}: {shown(error)}"
