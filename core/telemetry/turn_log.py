"""One line of JSON a request, to explain later why a prefix was or was not reused.

Names of counters derive from the counters' own classes, so the log has every counter.
Prompts, tokens and salts never appear.
"""

from __future__ import annotations

import errno
import functools
import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import attrs

from ..log import get_logger

LINE_VERSION = 1
"""Value of the field `v`; raised when a field changes its meaning."""

IDENTITY_FIELDS = frozenset({"enabled", "root", "quota_bytes"})
"""Fields that identify the store and count nothing."""

Change: TypeAlias = tuple[attrs.AttrsInstance, attrs.AttrsInstance]
"""The counters before and after a request."""


@attrs.frozen(kw_only=True)
class TurnRecord:
    """Content of one line; the line has the fields in camelCase.

    Attributes:
        turn: The request's id, unique in its process and model.
        model: The model's name.
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Sampled tokens.
        cached_tokens: Prompt tokens whose state came from the cache, in memory or on disk.
        restored_tokens: Cached tokens that came from disk.
        miss: The miss cause of the first token that was not found, or None.
        finish_reason: The request's finish reason.
        queue_ms: From submission to admission; None without an admission.
        ttft_ms: From submission to the first token; None without one.
        total_ms: From submission to the end.
        preemptions: How often the request lost its blocks.
        decode_batch: Mean decode rows of a step while the request ran; None without such
            steps.
        cold_enabled: Whether a store was open.
    """

    turn: int
    model: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    restored_tokens: int
    miss: str | None
    finish_reason: str
    queue_ms: float | None
    ttft_ms: float | None
    total_ms: float
    preemptions: int
    decode_batch: float | None = None
    cold_enabled: bool = False


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


@functools.cache
def _counters(cls: type[attrs.AttrsInstance]) -> tuple[str, ...]:
    kinds = get_type_hints(cls)
    return tuple(
        field.name
        for field in attrs.fields(cls)
        if kinds[field.name] is int and field.name not in IDENTITY_FIELDS
    )


def _delta_name(prefix: str, counter: str) -> str:
    return _camel(f"{prefix}_{counter}")


def delta_fields(cls: type[attrs.AttrsInstance], prefix: str) -> tuple[str, ...]:
    """Return a line's field for every counter of a type, e.g. `coldHits` of `hits`.

    A counter is a field of type int that is no identity field.
    """
    return tuple(_delta_name(prefix, counter) for counter in _counters(cls))


def delta(
    prefix: str, before: attrs.AttrsInstance, after: attrs.AttrsInstance
) -> dict[str, int]:
    """Return by how much each counter rose, under the names of `delta_fields`."""
    return {
        _delta_name(prefix, counter): getattr(after, counter) - getattr(before, counter)
        for counter in _counters(type(after))
    }


def mean_decode_batch(before: Mapping[int, int], after: Mapping[int, int]) -> float | None:
    """Return the mean number of decode rows between two occupancy histograms.

    Steps without decode rows do not count; None if no other step ran.
    """
    steps = {rows: after[rows] - before.get(rows, 0) for rows in after if rows > 0}
    num_steps = sum(steps.values())
    if num_steps == 0:
        return None
    return sum(rows * count for rows, count in steps.items()) / num_steps


def _plain(value: Any) -> Any:
    """Round a float to three decimals; NaN and infinity become None, as JSON lacks both."""
    if not isinstance(value, float):
        return value
    return round(value, 3) if math.isfinite(value) else None


def _utc_now() -> datetime:
    return datetime.now(UTC)


class TurnLog:
    """Appends to `<directory>/<UTC date>-<pid>.jsonl`; a failure never fails a request.

    Any thread may write. The first line creates the folder, readable by its owner alone.

    Attributes:
        directory: Folder of the files.
        failures: Number of lines that could not be written.
    """

    def __init__(self, directory: Path, clock: Callable[[], datetime] = _utc_now) -> None:
        self.directory = directory
        self.failures = 0
        self._clock = clock
        self._log = get_logger("telemetry")
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._descriptor: int | None = None
        self._torn = False
        self._closed = False

    def write(
        self, record: TurnRecord, *, cold: Change | None = None, sidecar: Change | None = None
    ) -> None:
        """Append the request's line.

        Args:
            record: The request's record.
            cold: The cold tier's counters before and after the request; None leaves them out.
            sidecar: The counters of sidecars before and after; None leaves them out.
        """
        now = self._clock().astimezone(UTC)
        line: dict[str, Any] = {"v": LINE_VERSION, "ts": now.isoformat(timespec="milliseconds")}
        for field in attrs.fields(TurnRecord):
            line[_camel(field.name)] = _plain(getattr(record, field.name))
        for prefix, change in (("cold", cold), ("coldSidecar", sidecar)):
            if change is not None:
                line |= delta(prefix, *change)
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            try:
                self._append(self.directory / f"{now.date()}-{os.getpid()}.jsonl", data)
            except OSError as error:
                self._count(error)

    def close(self) -> None:
        """Close the file; later lines count as failures."""
        with self._lock:
            self._closed = True
            self._release()

    def _append(self, path: Path, data: bytes) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "the log is closed")
        descriptor = self._opened(path)
        if self._torn:
            data = b"\n" + data  # ends the torn line, so that this line stays readable
        written = os.write(descriptor, data)
        self._torn = written < len(data)
        if self._torn:
            raise OSError(errno.ENOSPC, f"{written} of {len(data)} bytes were written")

    def _opened(self, path: Path) -> int:
        """Return the descriptor of `path`; the path changes with the date and after a fork."""
        if self._descriptor is not None and self._path == path:
            return self._descriptor
        self._release()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
        self._path, self._descriptor = path, descriptor
        # containers may reuse a process id, and an earlier process may have died in a write
        size = os.fstat(descriptor).st_size
        self._torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        return descriptor

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _count(self, error: OSError) -> None:
        self.failures += 1
        if self.failures == 1:
            self._log.warning(
                "telemetry.turn_log.failed", directory=str(self.directory), reason=str(error)
            )
