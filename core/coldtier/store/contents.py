"""What lies in an open store: files, the index of them and the ledger, in agreement."""

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
    """Put garbage collection off: it would look again and again at what is only added."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Contents:
    """The objects of one held folder.

    No entry without a file, unless somebody else has just deleted it; no file of ours that
    the ledger does not count. What adds, removes or scans needs `exclusive`.

    Attributes:
        directory: The folder.
        index: What this process knows of its objects.
        ledger: What all processes have put there.
        clock: Nanoseconds of the time of day.
    """

    def __init__(self, directory: StoreDirectory, clock: Callable[[], int]) -> None:
        """Scan the folder.

        Raises:
            OSError: It cannot be locked or scanned.
        """
        self.directory = directory
        self.index = Index()
        self.ledger = Ledger(directory.usage, clock)
        self.clock = clock
        self._changing = threading.Lock()  # the folder's lock does not part threads
        with self.exclusive():
            self.rescan()

    @contextmanager
    def exclusive(self, timeout_s: float = LOCK_TIMEOUT_S) -> Generator[None]:
        """Keep other threads and processes from changing the store.

        Raises:
            OSError: Another one has held it all the time, or the store was deleted.
        """
        if not self._changing.acquire(timeout=timeout_s):
            raise TimeoutError(f"{self.directory.root}: another thread changes the store")
        try:
            with self.directory.lock(timeout_s):
                yield
        finally:
            self._changing.release()

    def find(self, name: ObjectName) -> bool:
        """Look for an object on disk, and make the index agree; needs no lock."""
        facts = facts_of(self.directory.objects, name)
        if facts is None:
            self.index.forget(name)
        elif name not in self.index:
            self.index.add(name, facts.num_bytes, min(facts.stamp_ns, self.clock()))
        return facts is not None

    def rescan(self) -> None:
        """Make the index and the ledger agree with the disk."""
        with _without_collections():
            found = list(scan(self.directory.objects))
            self.index.replace(found, self.clock())
        self.ledger.settle(sum(num_bytes for _, num_bytes, _ in found))

    def link(self) -> None:
        """Look at what objects need, once each; not cheap, and needs no lock."""
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
        """Give a temporary file its object's name.

        Args:
            shard: Descriptor of its folder.
            temp: The file's name.
            name: The object's name.
            num_bytes: Its size.
            stamp_ns: Its last use.
            link: What it is of no use without.

        Raises:
            OSError: It could not be renamed; nothing was changed.
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
            name: Its name.
            identity: The device and inode that it must have, if not None.

        Returns:
            Whether it was there.

        Raises:
            OSError: It cannot be removed.
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
        """Remove many objects, shard by shard; others may change the store in between.

        Returns:
            Those that were there and could be removed.

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
            Whether it was removed; if not, the index knows more than before.

        Raises:
            OSError: It cannot be removed.
        """
        facts = facts_of(self.directory.objects, victim.name)
        if facts is not None and victim.used_ns < facts.stamp_ns <= self.clock():
            self.index.raise_stamp(victim.name, facts.stamp_ns)
            return False
        return self.remove(victim.name)

    def flush(self, *, everything: bool) -> None:
        """Write last uses down; one that cannot be written is as good as none."""
        for name, stamp_ns in self.index.take_stamps(everything=everything):
            with suppress(OSError):
                stamp_object(self.directory.objects, name, stamp_ns)

    def check(self) -> None:
        """Verify that the index is sound and the ledger counts what is on disk.

        Raises:
            AssertionError: It is not so; a fault of this module, unless somebody else
                deleted objects or a process died while it wrote.
        """
        with self.exclusive():
            self.index.check()
            num_bytes = sum(num_bytes for _, num_bytes, _ in scan(self.directory.objects))
            assert num_bytes == self.ledger.num_bytes, "the ledger counts what is on disk"
