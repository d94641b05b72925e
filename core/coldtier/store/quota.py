"""Limits on the bytes of a store, and the byte count that all processes share."""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Callable

import attrs

GIB = 2**30
MAX_QUOTA_BYTES = 100 * GIB
MIN_FREE_BYTES = 5 * GIB

_DAY_NS = 86400 * 10**9
_MAGIC = b"neveuse1"
_RECORD = struct.Struct("<8s3Q")  # magic, bytes of all objects, day, bytes written that day


class WriteOutcome(enum.Enum):
    """The outcomes of a write; the last three are refusals."""

    WRITTEN = "written"
    PRESENT = "present"
    QUOTA = "quota"
    FREE_SPACE = "free_space"
    DAILY_LIMIT = "daily_limit"


@attrs.frozen
class Bounds:
    """Limits of one store, resolved for its file system.

    Attributes:
        quota_bytes: Bound on the bytes of all objects together.
        min_free_bytes: Bytes of the file system that stay free.
        daily_write_bytes: Bound on the bytes written on one day (UTC); None means no bound.
    """

    quota_bytes: int
    min_free_bytes: int
    daily_write_bytes: int | None


@attrs.frozen
class StoreLimits:
    """Limits from the user's settings.

    Attributes:
        quota_bytes: Bound on the bytes of all objects together; None means a tenth of the
            file system, at most 100 GiB.
        min_free_bytes: Bytes of the file system that stay free; None means a twentieth of the
            file system, at least 5 GiB.
        daily_write_bytes: Bound on the bytes written on one day (UTC); None means no bound.
    """

    quota_bytes: int | None = None
    min_free_bytes: int | None = None
    daily_write_bytes: int | None = None

    def on(self, total_bytes: int) -> Bounds:
        """Return the bounds on a file system of `total_bytes` bytes."""
        quota, min_free = self.quota_bytes, self.min_free_bytes
        return Bounds(
            min(total_bytes // 10, MAX_QUOTA_BYTES) if quota is None else quota,
            max(total_bytes // 20, MIN_FREE_BYTES) if min_free is None else min_free,
            self.daily_write_bytes,
        )


@attrs.frozen
class StoreUsage:
    """Bytes that a store uses.

    Attributes:
        num_objects: Objects that this process knows.
        num_bytes: Bytes of all objects, other processes' objects included.
        quota_bytes: Bound on the bytes of all objects.
        free_bytes: Free bytes of the file system.
        written_today_bytes: Bytes that all processes have written since midnight (UTC).
    """

    num_objects: int
    num_bytes: int
    quota_bytes: int
    free_bytes: int
    written_today_bytes: int


class Ledger:
    """The byte count in the file `usage`, shared by all processes of a store.

    Every change needs the store's lock. A process that dies between the ledger's change and
    the file's change leaves the count too high by one object, until the next scan.
    """

    def __init__(self, descriptor: int, clock: Callable[[], int]) -> None:
        self._descriptor = descriptor
        self._clock = clock

    @property
    def num_bytes(self) -> int:
        """Bytes of all objects."""
        return self._read()[0]

    @property
    def written_today_bytes(self) -> int:
        """Bytes written since midnight (UTC)."""
        return self._read()[1]

    def add(self, num_bytes: int) -> None:
        """Count an object that is about to be added."""
        total, written = self._read()
        self._write(total + num_bytes, written + num_bytes)

    def remove(self, num_bytes: int) -> None:
        """Uncount a removed object; the day's written bytes stay."""
        total, written = self._read()
        self._write(max(total - num_bytes, 0), written)

    def settle(self, num_bytes: int) -> None:
        """Set the count to the result of a scan."""
        self._write(num_bytes, self._read()[1])

    def _read(self) -> tuple[int, int]:
        record = os.pread(self._descriptor, _RECORD.size, 0)
        if len(record) < _RECORD.size or not record.startswith(_MAGIC):
            return 0, 0  # a new or damaged file: opening the store settles the count
        _, total, day, written = _RECORD.unpack(record)
        return total, written if day == self._today() else 0

    def _write(self, total: int, written: int) -> None:
        record = _RECORD.pack(_MAGIC, total, self._today(), written)
        os.pwrite(self._descriptor, record, 0)

    def _today(self) -> int:
        return self._clock() // _DAY_NS
