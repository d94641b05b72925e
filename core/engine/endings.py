"""Errors and cleanup at the end of requests and of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import EngineClosedError, NeveError, shown
from .faults import FaultKind, Faults


def closed(fault: BaseException | None) -> EngineClosedError:
    """Return the error of pending and later calls to an engine that has ended.

    Args:
        fault: The error that ended the engine; None if the engine was closed.
    """
    if fault is None:
        return EngineClosedError("the model was closed")
    error = EngineClosedError(
        f"the engine has ended by a fault of its own, load the model again: {said(fault)}"
    )
    error.__cause__ = fault
    return error


def step_error(error: BaseException) -> Exception:
    """Return the error of the requests of a failed step."""
    return _wrapped(error, "the step failed")


def request_error(error: BaseException) -> Exception:
    """Return the error of a request that failed alone."""
    return _wrapped(error, "the request failed")


def run_all(
    steps: Iterable[Callable[[], object]], faults: Faults, kind: FaultKind = "closing"
) -> None:
    """Run all cleanup steps. A failing step is counted and does not stop later steps."""
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
    """Return the type and the message of an error in one line."""
    return f"{type(error).__name__}: {shown(error)}"
