"""The store: cold objects as files, written atomically, evicted by least recent use."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import StoreUnavailableError
from ..objects.keys import ObjectName
from ..stats import Counters
from .commit import Commit
from .contents import Contents
from .directory import StoreDirectory
from .files import StoredObject, read_object
from .index import ObjectInfo
from .quota import StoreLimits, StoreUsage, WriteOutcome

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REJECT_TIMEOUT_S = 1.0  # a reader waits for the lock, and a request waits for the reader


class ColdStore:
    """Objects on disk, by name.

    `contains`, `probe` and `touch` are for the engine's thread and cost at most one `stat`;
    `read` and `reject` are for readers, `write` and `flush_touches` for the writer. Several
    processes may use one store: each change holds the store's lock, and the bytes of all
    processes count against one quota.

    Attributes:
        root: The store's folder.
        quota_bytes: Bound on the bytes of all objects together.
        counters: Counters for evictions and corruptions.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        limits: StoreLimits,
        counters: Counters,
        clock: Callable[[], int],
    ) -> None:
        """Scan an open folder; the store closes the folder at its end.

        Raises:
            OSError: The folder cannot be locked or scanned.
        """
        self._bounds = limits.on(directory.total_bytes())
        self._clock = clock
        self._contents = Contents(directory, clock)
        self._commit = Commit(self._contents, self._bounds, counters)
        self._deleted: list[StoreDirectory] = []  # kept open, as readers may still use them
        self._unavailable: str | None = None  # the reason, once the store is unavailable
        self.root = directory.root
        self.quota_bytes = self._bounds.quota_bytes
        self.counters = counters

    @classmethod
    def open(
        cls,
        root: Path,
        limits: StoreLimits,
        counters: Counters,
        clock: Callable[[], int] = time.time_ns,
    ) -> ColdStore:
        """Open the store in `root`, creating a missing one.

        Args:
            root: The store's folder.
            limits: Limits of the store.
            counters: Counters for evictions and corruptions.
            clock: Time of day in nanoseconds.

        Raises:
            StoreUnavailableError: The store cannot be used; its folder was not touched.
        """
        directory = StoreDirectory(root)
        try:
            return cls(directory, limits, counters, clock)
        except OSError as error:
            directory.close()
            raise StoreUnavailableError(f"{root}: {error.strerror or error}") from error

    def close(self) -> None:
        """Write all last uses to disk and close the folder; no call may be running."""
        self._contents.flush(everything=True)
        for directory in (self._contents.directory, *self._deleted):
            directory.close()

    def contains(self, name: ObjectName) -> bool:
        """Return whether the index has an object; no I/O, no lock."""
        return name in self._contents.index

    def probe(self, name: ObjectName) -> bool:
        """Return whether an object exists, even one written by another process."""
        return name in self._contents.index or self._contents.find(name)

    def read(self, name: ObjectName, max_bytes: int) -> StoredObject | None:
        """Read an object; the returned bytes are not verified, and no use is recorded.

        Args:
            name: The object's name.
            max_bytes: Expected size; of a larger object, one byte more is returned.

        Returns:
            The object; None if it cannot be read, and the index then forgets it.
        """
        contents = self._contents
        try:
            return read_object(contents.directory.objects, name, max_bytes)
        except OSError:
            contents.index.forget(name)
            return None

    def write(self, name: ObjectName, parts: Sequence[Buffer], stamp_ns: int) -> WriteOutcome:
        """Make an object durable, or return the refusal.

        Args:
            name: The object's name.
            parts: The object's bytes, in pieces.
            stamp_ns: Last use: the chain's use, less a microsecond for each block of depth.

        Raises:
            OSError: The object cannot be written; no part of the object is left.
        """
        if self._unavailable is not None:
            raise StoreUnavailableError(self._unavailable)
        try:
            return self._commit.write(name, parts, stamp_ns)
        except FileNotFoundError:
            self._reopen()
            return self._commit.write(name, parts, stamp_ns)

    def _reopen(self) -> None:
        """Open the store again after its folder was deleted; a failure is final."""
        try:
            directory = StoreDirectory(self.root)
            self._deleted.append(directory)
            fresh = Contents(directory, self._clock)
        except OSError as error:
            self._unavailable = str(error)
            self._contents.index.replace((), self._clock())
            raise
        self._deleted[-1] = self._contents.directory
        self._contents = fresh
        self._commit = Commit(fresh, self._bounds, self.counters)

    def reject(self, name: ObjectName, identity: tuple[int, int]) -> bool:
        """Remove an object that was read and found unsound, and count the corruption.

        Args:
            name: The object's name.
            identity: Device and inode of the file that was read; a newer file stays.

        Returns:
            Whether the object was removed.
        """
        self.counters.add(corruptions=1)
        with suppress(OSError), self._contents.exclusive(_REJECT_TIMEOUT_S):
            return self._contents.remove(name, identity)
        return False

    def touch(self, names: Sequence[ObjectName], stamp_ns: int) -> None:
        """Stamp the objects of a chain, less a microsecond for each block of depth.

        Args:
            names: Objects of the chain, its head first.
            stamp_ns: Time of the use.
        """
        self._contents.index.touch(names, stamp_ns)

    def flush_touches(self) -> None:
        """Write the last uses that lag far behind to disk."""
        self._contents.flush(everything=False)

    def objects(self) -> list[ObjectInfo]:
        """Return all objects in the order of eviction."""
        return self._contents.index.objects()

    def prune(self, target_bytes: int, *, dry_run: bool = False) -> list[ObjectInfo]:
        """Remove objects until the others have at most `target_bytes` bytes.

        Objects that cannot be restored any more go first, then the least recently used ones,
        each with all objects that depend on it.

        Args:
            target_bytes: Bytes that may stay.
            dry_run: Remove nothing; only return the candidates.

        Returns:
            The removed objects, or the candidates.

        Raises:
            OSError: The store cannot be locked or scanned.
        """
        self._contents.link()  # outside the lock, because it may read many files
        with self._contents.exclusive():
            self._contents.rescan()
            self._contents.link()
            index = self._contents.index
            victims = index.oldest(index.num_bytes - target_bytes, whole=True)
        if dry_run:
            return victims
        gone = self._contents.remove_all(victim.name for victim in victims)
        return [victim for victim in victims if victim.name in gone]

    def remove(self, names: Sequence[ObjectName]) -> int:
        """Remove objects, and return the number of removed ones.

        Raises:
            OSError: The store cannot be locked.
        """
        return len(self._contents.remove_all(names))

    def clear(self) -> int:
        """Remove all objects, and return their number; foreign files stay.

        Raises:
            OSError: The store cannot be locked or scanned.
        """
        with self._contents.exclusive():
            self._contents.rescan()
        return self.remove([info.name for info in self.objects()])

    def usage(self) -> StoreUsage:
        """Return the store's usage.

        Raises:
            OSError: The file system's facts cannot be read.
        """
        contents = self._contents
        return StoreUsage(
            num_objects=len(contents.index),
            num_bytes=contents.ledger.num_bytes,
            quota_bytes=self.quota_bytes,
            free_bytes=contents.directory.free_bytes(),
            written_today_bytes=contents.ledger.written_today_bytes,
        )

    def check(self) -> None:
        """Verify every equation that must hold; O(objects).

        Raises:
            AssertionError: An equation is broken: a fault of this room, unless another program
                deleted objects or a process died during a write.
        """
        self._contents.check()
