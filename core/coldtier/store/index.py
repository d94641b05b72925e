"""The store's index in memory: sizes, last uses and the order of eviction.

A use of a chain stamps all of its objects with one time, less a microsecond for each block of
depth, and a stamp never falls. An object is therefore always older than its ancestors, and
evicting the oldest first never cuts a chain in the middle (KV-4). A sidecar's stamp lies
between the stamps of the blocks before and behind its boundary. Objects that cannot be restored
any more are evicted before all others; the index knows them from the links, see `lineage`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing

import attrs

from ..objects.claims import Link
from ..objects.keys import ObjectName
from .lineage import Lineage
from .recency import Entry, UseOrder
from .victims import Victims

DEPTH_NS = 1000
"""Difference between the stamps of a block and of the next block of its chain."""

STATE_NS = DEPTH_NS // 2
"""Difference between the stamps of a block and of the sidecar at its end."""

FLUSH_NS = 60 * 10**9
"""Bound on the lag of a file's time behind the last use of its object."""


@attrs.frozen
class ObjectInfo:
    """Name, size and last use of an object.

    Attributes:
        name: The object's name.
        num_bytes: The object's size.
        used_ns: The object's last use.
    """

    name: ObjectName
    num_bytes: int
    used_ns: int


class Index:
    """The objects by name, in the order of their last use.

    Every method may be called from any thread; `in` takes no lock.

    Attributes:
        num_bytes: Bytes of all objects together.
        newest_ns: Upper bound of all stamps.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self.newest_ns = 0
        self._entries: dict[ObjectName, Entry] = {}
        self._order = UseOrder(self._entries)
        self._tickets = itertools.count()
        # keyed by ticket: hashing a name would be the largest cost of a use
        self._unflushed: dict[int, ObjectName] = {}  # objects with a use that disk lacks
        self._due: dict[int, ObjectName] = {}  # unflushed objects beyond FLUSH_NS
        self._lineage = Lineage()
        self._lock = threading.Lock()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, name: ObjectName, num_bytes: int, stamp_ns: int) -> None:
        """Enter an object that was found or written; its file has the given stamp."""
        with self._lock:
            old = self._entries.get(name)
            if old is not None:
                self._remove(name)
                stamp_ns = max(stamp_ns, old.stamp_ns)
            self._add(name, num_bytes, stamp_ns, stamp_ns)

    def forget(self, name: ObjectName) -> None:
        """Remove an object if the index has it."""
        with self._lock:
            if name in self._entries:
                self._remove(name)

    def raise_stamp(self, name: ObjectName, stamp_ns: int) -> None:
        """Adopt a newer stamp that another process has written to disk."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is not None and stamp_ns > entry.stamp_ns:
                entry.stamp_ns = entry.disk_ns = stamp_ns
                self.newest_ns = max(self.newest_ns, stamp_ns)

    def touch(self, names: Sequence[ObjectName], stamp_ns: int) -> None:
        """Use a chain, its head first.

        If one object lags too far behind on disk, its ancestors are flushed too: with older
        times than their descendants they would be evicted first after a restart.
        """
        due = False
        with self._lock:
            for depth in reversed(range(len(names))):
                name, used_ns = names[depth], stamp_ns - DEPTH_NS * depth
                self._lineage.renew(name)
                for state in self._lineage.states(name):
                    due = self._use(state, used_ns - STATE_NS, due=due)
                due = self._use(name, used_ns, due=due)

    def _use(self, name: ObjectName, stamp_ns: int, *, due: bool) -> bool:
        """Raise an object's stamp; return whether its file lags too far behind.

        Args:
            name: The object.
            stamp_ns: Time of the use.
            due: Whether a descendant's file lags too far behind.
        """
        entry = self._entries.get(name)
        if entry is None:
            return due
        due = self._stamp(name, entry, max(entry.stamp_ns, stamp_ns)) or due
        if due:
            self._unflushed[entry.ticket] = self._due[entry.ticket] = name
        return due

    def unlinked(self) -> list[ObjectName]:
        """Return the objects whose links are not known yet."""
        with self._lock:
            return self._lineage.unknown(self._entries)

    def link(self, links: Iterable[tuple[ObjectName, Link | None]]) -> None:
        """Record the links of objects; None for an object without a link."""
        with self._lock:
            fresh: list[tuple[int, ObjectName]] = []
            for name, link in links:
                if name in self._entries and self._lineage.learn(name, link):
                    fresh.append((self._entries[name].stamp_ns, name))
            for _, name in sorted(fresh, key=lambda item: -item[0]):
                self._raise_ancestors(name)

    def _raise_ancestors(self, name: ObjectName) -> None:
        """Make all ancestors of an object, and their sidecars, newer than the object."""
        stamp_ns = self._entries[name].stamp_ns
        for block in self._lineage.ancestors(name):
            for state in self._lineage.states(block):
                if state != name:
                    self._use(state, stamp_ns + DEPTH_NS - STATE_NS, due=False)
            if self._entries[block].stamp_ns > stamp_ns:
                break
            stamp_ns += DEPTH_NS
            self._use(block, stamp_ns, due=False)

    def take_stamps(self, *, everything: bool = False) -> list[tuple[ObjectName, int]]:
        """Return the stamps to write to disk, and mark them as written.

        Args:
            everything: Include stamps whose lag is within `FLUSH_NS`.
        """
        with self._lock:
            names = dict(self._unflushed if everything else self._due)
            self._due.clear()
            for ticket, name in names.items():
                del self._unflushed[ticket]
                self._entries[name].disk_ns = self._entries[name].stamp_ns
            return [(name, self._entries[name].stamp_ns) for name in names.values()]

    def oldest(
        self,
        num_bytes: int,
        until_ns: int | None = None,
        skip: Collection[ObjectName] = (),
        *,
        whole: bool = False,
    ) -> list[ObjectInfo]:
        """Return the objects to evict so that `num_bytes` are freed.

        Objects that cannot be restored any more come first, then the oldest objects, each
        followed by the objects that depend on it. The call changes nothing visible.

        Args:
            num_bytes: Bytes to free.
            until_ns: Only objects with a last use up to this time; None for all.
            skip: Objects to pass over.
            whole: Include all objects that depend on a chosen one.

        Returns:
            As few objects as possible; empty if the allowed objects are too small together.
        """
        with self._lock:
            victims = Victims(self._entries, self._lineage, num_bytes, until_ns, skip, whole)
            victims.take_lost()
            if victims.missing_bytes > 0:
                with closing(self._order.oldest_first()) as oldest:
                    victims.take_all(oldest)
            if victims.missing_bytes > 0:
                return []
            found = [(name, self._entries[name]) for name in victims.chosen]
            return [ObjectInfo(n, e.num_bytes, e.stamp_ns) for n, e in found]

    def objects(self) -> list[ObjectInfo]:
        """Return all objects in the order of eviction."""
        with self._lock:
            infos = [ObjectInfo(n, e.num_bytes, e.stamp_ns) for n, e in self._entries.items()]
        return sorted(infos, key=lambda info: info.used_ns)

    def replace(self, found: Sequence[tuple[ObjectName, int, int]], now_ns: int) -> None:
        """Set the index to the objects found on disk; newer uses in memory stay.

        Stamps ahead of the clock are lowered to about now, in their order: otherwise their
        objects would outlive every object used from now on.

        Args:
            found: Each object's name, size and modification time.
            now_ns: The present time of the clock.
        """
        with self._lock:
            if self._entries:
                self._merge(found)
            else:
                self._load(found)
            if self.newest_ns > now_ns:
                self._bring_down(now_ns)

    def _load(self, found: Sequence[tuple[ObjectName, int, int]]) -> None:
        for name, num_bytes, disk_ns in found:
            ticket = next(self._tickets)
            self._entries[name] = Entry(num_bytes, disk_ns, disk_ns, ticket)
        self._order.drop()
        self.num_bytes = sum(num_bytes for _, num_bytes, _ in found)
        self.newest_ns = max((disk_ns for _, _, disk_ns in found), default=0)

    def _merge(self, found: Sequence[tuple[ObjectName, int, int]]) -> None:
        for name in self._entries.keys() - {name for name, _, _ in found}:
            self._remove(name)
        for name, num_bytes, disk_ns in found:
            entry = self._entries.get(name)
            if entry is None:
                self._add(name, num_bytes, disk_ns, disk_ns)
            else:
                self.num_bytes += num_bytes - entry.num_bytes
                entry.num_bytes, entry.disk_ns = num_bytes, disk_ns
                self._stamp(name, entry, max(disk_ns, entry.stamp_ns))

    def _bring_down(self, now_ns: int) -> None:
        ahead = [(e.stamp_ns, e.ticket, n) for n, e in self._entries.items()]
        ahead = sorted(item for item in ahead if item[0] > now_ns)
        for rank, (_, _, name) in enumerate(ahead, start=1):
            self._stamp(name, self._entries[name], now_ns + rank)
        self.newest_ns = now_ns + len(ahead)
        self._order.drop()

    def _stamp(self, name: ObjectName, entry: Entry, stamp_ns: int) -> bool:
        """Set an entry's stamp; return whether its file now lags too far behind."""
        entry.stamp_ns = stamp_ns
        self.newest_ns = max(self.newest_ns, stamp_ns)
        if stamp_ns != entry.disk_ns:
            self._unflushed[entry.ticket] = name
        due = abs(stamp_ns - entry.disk_ns) > FLUSH_NS
        if due:
            self._due[entry.ticket] = name
        return due

    def _add(self, name: ObjectName, num_bytes: int, stamp_ns: int, disk_ns: int) -> None:
        entry = Entry(num_bytes, stamp_ns, disk_ns, next(self._tickets))
        self._entries[name] = entry
        self._order.add(name, entry)
        self.num_bytes += num_bytes
        self._stamp(name, entry, stamp_ns)

    def _remove(self, name: ObjectName) -> None:
        entry = self._entries.pop(name)
        self._lineage.leave(name)
        self.num_bytes -= entry.num_bytes
        self._unflushed.pop(entry.ticket, None)
        self._due.pop(entry.ticket, None)
        self._order.trim()

    def check(self) -> None:
        """Verify every equation that must hold; O(objects).

        Raises:
            AssertionError: An equation is broken: a fault of this module.
        """
        with self._lock:
            entries = self._entries
            assert self.num_bytes == sum(e.num_bytes for e in entries.values())
            assert all(e.stamp_ns <= self.newest_ns for e in entries.values())
            self._order.check()
            stale = {e.ticket: n for n, e in entries.items() if e.stamp_ns != e.disk_ns}
            assert stale.items() <= self._unflushed.items(), "a use not on disk is known"
            assert self._due.items() <= self._unflushed.items()
            assert all(entries[n].ticket == ticket for ticket, n in self._unflushed.items())
            self._lineage.check()
