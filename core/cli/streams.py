"""Standard streams that may be closed, broken or full: one rule for all commands.

Stdout has the results. A failed write to stdout fails every command. A reader that has closed
its pipe ends the command silently, as in other programs. Stderr has remarks; a failed write to
stderr stops nothing. A closed stdin counts as empty.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BROKEN_PIPE = 141
"""Exit code of a program whose reader went away, by the convention of shells: 128 + SIGPIPE."""

FAILED = 1
"""Exit code of a program that could not do what it was asked for."""


class OutputError(Exception):
    """Stdout cannot be written; no `OSError`, so that nobody takes it for another file's.

    Attributes:
        exit_code: What the program ends with.
        sentence: What to say about it; None if there is nobody to say it to.
    """

    def __init__(self, error: OSError) -> None:
        is_pipe = error.errno == errno.EPIPE
        self.exit_code = BROKEN_PIPE if is_pipe else FAILED
        why = "it is closed" if error.errno == errno.EBADF else error.strerror
        self.sentence = None if is_pipe else f"stdout cannot be written: {why}"
        super().__init__(self.sentence or "the reader of stdout went away")


class _Results(io.FileIO):
    """Stdout's descriptor."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OutputError(error) from error


class _Remarks(io.FileIO):
    """Stderr's descriptor."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def secure() -> None:
    """Make the three streams usable, whatever the process inherited.

    A closed descriptor is given to the null device: otherwise the next file that is opened
    would get its number, and what is meant for a stream would be written there.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(_null(os.O_RDONLY), encoding="utf-8", closefd=False)
    # read-only, so that writing there fails
    results = 1 if sys.stdout is not None else _null(os.O_RDONLY)
    remarks = 2 if sys.stderr is not None else _null(os.O_WRONLY)
    sys.stdout = _text(_Results(results, "wb", closefd=False), sys.stdout)
    sys.stderr = _text(_Remarks(remarks, "wb", closefd=False), sys.stderr)


def _null(mode: int) -> int:
    """Open the null device; it gets the lowest free number, that of the closed stream."""
    return os.open(os.devnull, mode)


def flush() -> None:
    """Write what stdout still holds.

    Raises:
        OutputError: It cannot be written.
    """
    sys.stdout.flush()


def abandon() -> None:
    """Drop what stdout still holds, so that the interpreter's exit does not try again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _text(raw: io.FileIO, old: TextIO | None) -> TextIO:
    """Return a text stream over a descriptor, with the old one's ways if there is one."""
    is_error = isinstance(raw, _Remarks)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors=getattr(old, "errors", None) or ("backslashreplace" if is_error else "strict"),
        line_buffering=getattr(old, "line_buffering", is_error),
        write_through=getattr(old, "write_through", False),
    )
