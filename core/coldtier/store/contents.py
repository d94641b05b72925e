"""Contents of an open store: files, index and ledger, in agreement."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress

from ..objects.claims import HEAD_BYTES, Link, link_of
from ..objects.keys import ObjectName
from .directory import LOCK_TIMEOUT_S, StoreDirectory
from .files import (
    by_shard,
    facts_of,
    publish,
    read_heads,
    scan,
    stamp_object,
    unlink_object,
    unlink_objects,
)
from .index import Index, ObjectInfo
from .quota import Ledger


@contextmanager
def _without_collections() -> Generator[None]:
    """Suspend garbage collection, which would scan a growing list again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Contents:
    """The objects of one open folder.

    Every index entry has a file, unless another process has just deleted the file. The ledger
    counts every file of the store. Methods that add, remove or scan need `exclusive`.

    Attributes:
        directory: The folder.
        index: The objects that this process knows.
        ledger: The count of bytes by all processes.
        clock: Time of day in nanoseconds.
    """

    def __init__(self, directory: StoreDirectory, clock: Callable[[], int]) -> None:
        """Scan the folder.

        Raises:
            OSError: The folder cannot be locked or scanned.
        """
        self.directory = directory
        self.index = Index()
        self.ledger = Ledger(directory.usage, clock)
        self.clock = clock
        self._changing = threading.Lock()  # the folder's lock does not exclude threads
        with self.exclusive():
            self.rescan()

    @contextmanager
    def exclusive(self, timeout_s: float = LOCK_TIMEOUT_S) -> Generator[None]:
        """Keep other threads and processes from changing the store.

        Raises:
            OSError: Another thread or process held the lock until the timeout, or the store
                was deleted.
        """
        if not self._changing.acquire(timeout=timeout_s):
            raise TimeoutError(f"{self.directory.root}: another thread changes the store")
        try:
            with self.directory.lock(timeout_s):
                yield
        finally:
            self._changing.release()

    def find(self, name: ObjectName) -> bool:
        """Look for an object on disk, and update the index; needs no lock."""
        facts = facts_of(self.directory.objects, name)
        if facts is None:
            self.index.forget(name)
        elif name not in self.index:
            self.index.add(name, facts.num_bytes, min(facts.stamp_ns, self.clock()))
        return facts is not None

    def rescan(self) -> None:
        """Rebuild the index and the ledger from the disk."""
        with _without_collections():
            found = list(scan(self.directory.objects))
            self.index.replace(found, self.clock())
        self.ledger.settle(sum(num_bytes for _, num_bytes, _ in found))

    def link(self) -> None:
        """Read the links of all objects without one; needs no lock and reads many files."""
        names = self.index.unlinked()
        heads = read_heads(self.directory.objects, names, HEAD_BYTES)
        self.index.link([(name, link_of(head, name)) for name, head in heads])

    def add(
        self,
        shard: int,
        temp: str,
        name: ObjectName,
        num_bytes: int,
        stamp_ns: int,
        link: Link | None,
    ) -> None:
        """Rename a temporary file to its object's name.

        Args:
            shard: Descriptor of the file's folder.
            temp: The file's name.
            name: The object's name.
            num_bytes: The object's size.
            stamp_ns: The object's last use.
            link: Objects that the object needs; None for an object without a link.

        Raises:
            OSError: The file cannot be renamed; nothing was changed.
        """
        self.ledger.add(num_bytes)
        try:
            publish(shard, temp, name)
        except OSError:
            self.ledger.remove(num_bytes)
            raise
        self.index.add(name, num_bytes, stamp_ns)
        self.index.link([(name, link)])

    def remove(self, name: ObjectName, identity: tuple[int, int] | None = None) -> bool:
        """Remove an object.

        Args:
            name: The object's name.
            identity: Device and inode of the file to remove; None for any file.

        Returns:
            Whether the object existed and was removed.

        Raises:
            OSError: The object cannot be removed.
        """
        facts = facts_of(self.directory.objects, name)
        if facts is None:
            self.index.forget(name)
            return False
        if identity not in (None, facts.identity):
            return False
        unlink_object(self.directory.objects, name)
        self.index.forget(name)
        self.ledger.remove(facts.num_bytes)
        return True

    def remove_all(self, names: Iterable[ObjectName]) -> set[ObjectName]:
        """Remove many objects, shard by shard; the lock is released between shards.

        Returns:
            The objects that existed and were removed.

        Raises:
            OSError: The store cannot be locked.
        """
        removed: set[ObjectName] = set()
        for group in by_shard(names):
            with self.exclusive():
                gone = unlink_objects(self.directory.objects, group)
                for name, _ in gone:
                    self.index.forget(name)
                self.ledger.remove(sum(num_bytes or 0 for _, num_bytes in gone))
            removed.update(name for name, num_bytes in gone if num_bytes is not None)
        return removed

    def remove_unused(self, victim: ObjectInfo) -> bool:
        """Remove an object unless another process has used it meanwhile.

        Returns:
            Whether the object was removed; if not, the index has the newer use.

        Raises:
            OSError: The object cannot be removed.
        """
        facts = facts_of(self.directory.objects, victim.name)
        if facts is not None and victim.used_ns < facts.stamp_ns <= self.clock():
            self.index.raise_stamp(victim.name, facts.stamp_ns)
            return False
        return self.remove(victim.name)

    def flush(self, *, everything: bool) -> None:
        """Write last uses to the files; a use that cannot be written is dropped."""
        for name, stamp_ns in self.index.take_stamps(everything=everything):
            with suppress(OSError):
                stamp_object(self.directory.objects, name, stamp_ns)

    def check(self) -> None:
        """Verify that the index is consistent and the ledger counts the bytes on disk.

        Raises:
            AssertionError: An equation is broken: a fault of this module, unless another
                program deleted objects or a process died during a write.
        """
        with self.exclusive():
            self.index.check()
            num_bytes = sum(num_bytes for _, num_bytes, _ in scan(self.directory.objects))
            assert num_bytes == self.ledger.num_bytes, "the ledger counts the bytes on disk"
