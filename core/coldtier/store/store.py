"""The store: cold objects as files, written once and whole, the least used evicted first."""

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

_REJECT_TIMEOUT_S = 1.0  # a reader waits for it, and a turn for the reader


class ColdStore:
    """Objects on disk, by name.

    `contains`, `probe` and `touch` are for the engine's thread and cost at most one `stat`;
    `read` and `reject` are for readers, `write` and `flush_touches` for the writer. Several
    processes may use one store: whoever changes it holds its lock, and the bytes of all of
    them count against one quota.

    Attributes:
        root: The store's folder.
        quota_bytes: What its objects may take together.
        counters: Where evictions and corruptions are counted.
    """

    def __init__(
        self,
        directory: StoreDirectory,
        limits: StoreLimits,
        counters: Counters,
        clock: Callable[[], int],
    ) -> None:
        """Scan an open folder, which the store closes from now on.

        Raises:
            OSError: It cannot be locked or scanned.
        """
        self._bounds = limits.on(directory.total_bytes())
        self._clock = clock
        self._contents = Contents(directory, clock)
        self._commit = Commit(self._contents, self._bounds, counters)
        self._deleted: list[StoreDirectory] = []  # readers may be in them until we close
        self._unavailable: str | None = None  # why, once it is
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
        """Open the store in `root`, making it if there is nothing yet.

        Args:
            root: Its folder.
            limits: What it may take.
            counters: Where it counts.
            clock: Nanoseconds of the time of day.

        Raises:
            StoreUnavailableError: It cannot be used; what is there was not touched.
        """
        directory = StoreDirectory(root)
        try:
            return cls(directory, limits, counters, clock)
        except OSError as error:
            directory.close()
            raise StoreUnavailableError(f"{root}: {error.strerror or error}") from error

    def close(self) -> None:
        """Write all last uses down and let go of the folder; no call may be under way."""
        self._contents.flush(everything=True)
        for directory in (self._contents.directory, *self._deleted):
            directory.close()

    def contains(self, name: ObjectName) -> bool:
        """Return whether an object is known to be there; no I/O, no lock."""
        return name in self._contents.index

    def probe(self, name: ObjectName) -> bool:
        """Return whether an object is there, perhaps written by another process."""
        return name in self._contents.index or self._contents.find(name)

    def read(self, name: ObjectName, max_bytes: int) -> StoredObject | None:
        """Read an object; what comes back is not checked, and not used yet.

        Args:
            name: Its name.
            max_bytes: What it may have; of a larger one, one byte more is returned.

        Returns:
            None, and the object is forgotten, if it cannot be read.
        """
        contents = self._contents
        try:
            return read_object(contents.directory.objects, name, max_bytes)
        except OSError:
            contents.index.forget(name)
            return None

    def write(self, name: ObjectName, parts: Sequence[Buffer], stamp_ns: int) -> WriteOutcome:
        """Make an object durable, or say why not.

        Args:
            name: Its name.
            parts: Its bytes, in pieces.
            stamp_ns: Its last use: the chain's, less a microsecond for each block of depth.

        Raises:
            OSError: It cannot be written; nothing of it is left.
        """
        if self._unavailable is not None:
            raise StoreUnavailableError(self._unavailable)
        try:
            return self._commit.write(name, parts, stamp_ns)
        except FileNotFoundError:
            self._reopen()
            return self._commit.write(name, parts, stamp_ns)

    def _reopen(self) -> None:
        """Begin anew after the folder was deleted; give up for good if that fails."""
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
            name: Its name.
            identity: Device and inode of what was read; a fresh object in its place stays.

        Returns:
            Whether it was removed.
        """
        self.counters.add(corruptions=1)
        with suppress(OSError), self._contents.exclusive(_REJECT_TIMEOUT_S):
            return self._contents.remove(name, identity)
        return False

    def touch(self, names: Sequence[ObjectName], stamp_ns: int) -> None:
        """Use a chain: its objects get the stamp, a microsecond less for each of depth.

        Args:
            names: Its objects, the head first.
            stamp_ns: When it was used.
        """
        self._contents.index.touch(names, stamp_ns)

    def flush_touches(self) -> None:
        """Write down the last uses that lag far behind on disk."""
        self._contents.flush(everything=False)

    def objects(self) -> list[ObjectInfo]:
        """Return all objects in the order of eviction."""
        return self._contents.index.objects()

    def prune(self, target_bytes: int, *, dry_run: bool = False) -> list[ObjectInfo]:
        """Remove objects until the rest has so many bytes.

        What cannot be restored any more goes first, then what was least recently used, and
        with it all that cannot be restored without it.

        Args:
            target_bytes: What may stay.
            dry_run: Only say which would go.

        Returns:
            The objects that went.

        Raises:
            OSError: The store cannot be locked or scanned.
        """
        self._contents.link()  # before the lock: it may take a while
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
        """Remove objects, and return how many there were that could be.

        Raises:
            OSError: The store cannot be locked.
        """
        return len(self._contents.remove_all(names))

    def clear(self) -> int:
        """Remove all objects, and return how many; what is not ours stays.

        Raises:
            OSError: The store cannot be locked or scanned.
        """
        with self._contents.exclusive():
            self._contents.rescan()
        return self.remove([info.name for info in self.objects()])

    def usage(self) -> StoreUsage:
        """Return what the store takes.

        Raises:
            OSError: The file system does not say.
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
            AssertionError: One is broken; a fault of this room, unless somebody else
                deleted objects or a process died while it wrote.
        """
        self._contents.check()
