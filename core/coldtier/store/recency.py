"""The order of last uses: a heap that is corrected when it is read."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Mapping

import attrs

from ..objects.keys import ObjectName


@attrs.define(eq=False, weakref_slot=False)
class Entry:
    """An object of the store.

    Attributes:
        num_bytes: Size of the object.
        stamp_ns: Last use of the object.
        disk_ns: Last use as written in the object's file.
        ticket: Number of the entry, never used again.
    """

    num_bytes: int
    stamp_ns: int
    disk_ns: int
    ticket: int


class UseOrder:
    """The least recently used object first. No lock.

    An entry has one heap item with its ticket and a stamp, which may be too old but never too
    new. A use therefore costs one assignment. The item of a removed entry stays until it
    reaches the top. The heap is built at the first eviction; most processes never evict.
    """

    def __init__(self, entries: Mapping[ObjectName, Entry]) -> None:
        self._entries = entries
        self._heap: list[tuple[int, int, ObjectName]] | None = None  # (stamp, ticket, name)

    def add(self, name: ObjectName, entry: Entry) -> None:
        """Enter a new entry."""
        if self._heap is not None:
            heapq.heappush(self._heap, (entry.stamp_ns, entry.ticket, name))

    def drop(self) -> None:
        """Discard the heap: stamps have fallen, or many entries were added."""
        self._heap = None

    def trim(self) -> None:
        """Discard the heap once items of removed entries outnumber the others."""
        if self._heap is not None and len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = None

    def oldest_first(self) -> Generator[tuple[ObjectName, Entry]]:
        """Yield all entries, which must not change meanwhile. Closing restores the heap."""
        heap = self._built()
        passed: list[tuple[int, int, ObjectName]] = []
        try:
            while (entry := self._settle_top(heap)) is not None:
                passed.append(heapq.heappop(heap))
                yield passed[-1][2], entry
        finally:
            for item in passed:
                heapq.heappush(heap, item)

    def _built(self) -> list[tuple[int, int, ObjectName]]:
        if self._heap is None:
            self._heap = [(e.stamp_ns, e.ticket, n) for n, e in self._entries.items()]
            heapq.heapify(self._heap)
        return self._heap

    def _settle_top(self, heap: list[tuple[int, int, ObjectName]]) -> Entry | None:
        """Correct the top of the heap and return its entry; None for an empty heap."""
        while heap:
            stamp_ns, ticket, name = heap[0]
            entry = self._entries.get(name)
            if entry is None or entry.ticket != ticket:
                heapq.heappop(heap)
            elif entry.stamp_ns > stamp_ns:
                heapq.heapreplace(heap, (entry.stamp_ns, ticket, name))
            else:
                return entry
        return None

    def check(self) -> None:
        """Verify every equation that must hold; O(objects).

        Raises:
            AssertionError: An equation is broken: a fault of this module.
        """
        heap = self._built()
        items = {ticket: (stamp_ns, name) for stamp_ns, ticket, name in heap}
        assert len(items) == len(heap), "no ticket is given twice"
        for name, entry in self._entries.items():
            stamp_ns, owner = items[entry.ticket]
            assert owner == name, "an item bears the name of its entry"
            assert stamp_ns <= entry.stamp_ns, "an item is never too new"
