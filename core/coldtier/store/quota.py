"""How much may be written: bounds, and the count that all processes share."""

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
    """What became of a write; the last three are refusals."""

    WRITTEN = "written"
    PRESENT = "present"
    QUOTA = "quota"
    FREE_SPACE = "free_space"
    DAILY_LIMIT = "daily_limit"


@attrs.frozen
class Bounds:
    """What holds for one store: its limits on the file system that it lies on.

    Attributes:
        quota_bytes: What all objects may take together.
        min_free_bytes: What the file system keeps free.
        daily_write_bytes: What may be written on one day; None means no cap.
    """

    quota_bytes: int
    min_free_bytes: int
    daily_write_bytes: int | None


@attrs.frozen
class StoreLimits:
    """What the user allows.

    Attributes:
        quota_bytes: What all objects may take together; None means a tenth of the file
            system, at most 100 GiB.
        min_free_bytes: What the file system keeps free; None means a twentieth of it, at
            least 5 GiB.
        daily_write_bytes: What may be written on one day (UTC); None means no cap.
    """

    quota_bytes: int | None = None
    min_free_bytes: int | None = None
    daily_write_bytes: int | None = None

    def on(self, total_bytes: int) -> Bounds:
        """Return what they mean on a file system of that size."""
        quota, min_free = self.quota_bytes, self.min_free_bytes
        return Bounds(
            min(total_bytes // 10, MAX_QUOTA_BYTES) if quota is None else quota,
            max(total_bytes // 20, MIN_FREE_BYTES) if min_free is None else min_free,
            self.daily_write_bytes,
        )


@attrs.frozen
class StoreUsage:
    """What a store takes.

    Attributes:
        num_objects: Objects that this process knows.
        num_bytes: Bytes of all objects, those of other processes included.
        quota_bytes: What they may take.
        free_bytes: What the file system has left.
        written_today_bytes: What all processes have written since midnight (UTC).
    """

    num_objects: int
    num_bytes: int
    quota_bytes: int
    free_bytes: int
    written_today_bytes: int


class Ledger:
    """The count of bytes in the file `usage`, true for all processes of a store.

    Needs the store's lock for every change. A process that dies between a change here and
    the file that it stands for leaves the count too high by one object, until the store is
    scanned again.
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
        """Count an object that is about to be there."""
        total, written = self._read()
        self._write(total + num_bytes, written + num_bytes)

    def remove(self, num_bytes: int) -> None:
        """Count an object that is not there any more; what was written stays written."""
        total, written = self._read()
        self._write(max(total - num_bytes, 0), written)

    def settle(self, num_bytes: int) -> None:
        """Put the count right after a scan."""
        self._write(num_bytes, self._read()[1])

    def _read(self) -> tuple[int, int]:
        record = os.pread(self._descriptor, _RECORD.size, 0)
        if len(record) < _RECORD.size or not record.startswith(_MAGIC):
            return 0, 0  # new, or damaged: opening the store settles it
        _, total, day, written = _RECORD.unpack(record)
        return total, written if day == self._today() else 0

    def _write(self, total: int, written: int) -> None:
        record = _RECORD.pack(_MAGIC, total, self._today(), written)
        os.pwrite(self._descriptor, record, 0)

    def _today(self) -> int:
        return self._clock() // _DAY_NS
