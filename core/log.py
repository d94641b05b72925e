"""Logging: structlog, quiet by default.

Event names are dotted facts, `room.noun.verb`; values are key-value pairs. Prompts, tokens
and salts never appear.
"""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import structlog

from .errors import shown

EVENTS = frozenset(
    {
        "checkpoint.file.resolved",
        "coldtier.capture.late",
        "coldtier.read.failed",
        "coldtier.write.failed",
        "engine.decode.untraced",
        "engine.fault.contained",
        "engine.identification.failed",
        "engine.loop.failed",
        "engine.model.identified",
        "engine.step.failed",
        "engine.store.unavailable",
        "families.plugin.developed",
        "families.plugin.refused",
        "kvcache.growth.refused",
        "kvcache.pool.grown",
        "kvcache.snapshot.refused",
        "loading.model.loaded",
        "loading.pool.dynamic",
        "loading.setting.ignored",
        "scheduler.request.preempted",
        "telemetry.trace.failed",
        "telemetry.turn_log.failed",
    }
)
"""Every event name that neve logs."""


def _stderr_logger(*_: Any) -> structlog.PrintLogger:
    # looked up anew: whoever replaces sys.stderr for a while may close what he put there
    return structlog.PrintLogger(sys.stderr)


def configure(level: int = logging.WARNING) -> None:
    """Write events at or above `level` to stderr, for the whole process."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )


def configure_if_unset() -> None:
    """Be quiet unless the application has configured structlog itself."""
    if not structlog.is_configured():
        configure()


def get_logger(room: str) -> Any:
    """Return a logger bound to a room; make one per object or module, not per call."""
    return structlog.get_logger(room=room)


def origin(error: BaseException) -> str:
    """Return an error's first cause, with the file, line and function that raised the cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"{type(error).__name__}: {shown(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return text
    last = frames[-1]
    return f"{text}, at {Path(last.filename)}:{last.lineno} in {last.name}"
