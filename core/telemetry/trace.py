"""The trace: a line for each decision that text and token counts do not show."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import threading
from typing import ClassVar

from ..errors import SettingsError
from ..log import get_logger

TRACE_EVENTS = frozenset(
    {
        "cold_capture_walk",  # blocks= written= already= stop= elapsed_ms=
        "cold_restore_walk",  # turn= hot_tokens= bound_tokens= restored_tokens= elapsed_ms=
        "cold_sidecar_capture",  # boundary= outcome=
        "cold_sidecar_install",  # boundary=
        "turn_admitted",  # turn= hot_tokens= restored_tokens=
        "turn_preempted",  # turn= mode=
        "turn_finished",  # turn= reason=
    }
)
"""Every event, with its values in the comment."""

_BARE = re.compile(r"[!#-<>-\[\]-~]+", re.ASCII)  # visible, without quote, `=`, backslash


def _text(value: object) -> str:
    """Return a value as one bare word, or as a JSON string if it needs quotes."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(round(value, 3)) if isinstance(value, float) else str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)


class Trace:
    """Writes events as lines `[MLX_TRACE] name key=value key=value`.

    Any thread may write: each line is one write. A failed write never fails a request.

    Attributes:
        enabled: False for `NULL_TRACE`, which writes nothing; check before computing values.
        failures: Number of lines that could not be written.
    """

    enabled: ClassVar[bool] = True

    def __init__(self, descriptor: int | None = None) -> None:
        """Take over an open file; None means stderr."""
        self.failures = 0
        self._descriptor = descriptor
        self._closed = False
        self._lock = threading.Lock()
        self._log = get_logger("telemetry")

    @classmethod
    def from_settings(cls, enabled: bool, file: str | None) -> Trace:
        """Return the trace of the settings; `file` alone does not enable tracing.

        Raises:
            SettingsError: The file cannot be opened.
        """
        if not enabled:
            return NULL_TRACE
        if not file:
            return cls()
        try:
            return cls(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        except OSError as error:
            finding = f"inference_trace_file: {file} cannot be opened: {error.strerror}"
            raise SettingsError([finding]) from error

    def event(self, name: str, /, **values: object) -> None:
        """Write an event.

        Raises:
            ValueError: `name` is no trace event: a fault in the calling code.
        """
        if name not in TRACE_EVENTS:
            known = ", ".join(sorted(TRACE_EVENTS))
            raise ValueError(f"{name!r} is no trace event (known: {known})")
        pairs = (f"{key}={_text(value)}" for key, value in values.items())
        line = " ".join(["[MLX_TRACE]", name, *pairs])
        with self._lock:
            try:
                self._write(f"{line}\n")
            except (OSError, ValueError) as error:  # a closed sys.stderr is a ValueError
                self._count(error)

    def close(self) -> None:
        """Close the file; later events count as failures."""
        with self._lock:
            self._closed = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _write(self, line: str) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the trace is closed")
        if self._descriptor is not None:
            os.write(self._descriptor, line.encode())
            return
        sys.stderr.write(line)  # looked up for each line: a program may replace sys.stderr
        sys.stderr.flush()

    def _count(self, error: Exception) -> None:
        self.failures += 1
        # a warning on stderr would fail as the trace did
        if self.failures == 1 and self._descriptor is not None:
            self._log.warning("telemetry.trace.failed", reason=str(error))


class _NullTrace(Trace):
    """A trace without output; an event costs one call."""

    enabled: ClassVar[bool] = False

    def event(self, name: str, /, **values: object) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: all models share this trace."""


NULL_TRACE: Trace = _NullTrace()
"""The trace while tracing is off."""
