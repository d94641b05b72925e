"""Evictions that make room for a new object."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..objects.keys import ObjectName
from ..stats import Counters
from .contents import Contents
from .index import ObjectInfo
from .quota import Bounds, WriteOutcome

_MAX_DRIFT = 16  # divisor: index and ledger may differ by quota / 16


@attrs.define(eq=False)
class Admission:
    """The admission of one object to a store; needs the store's lock.

    Attributes:
        contents: The store.
        bounds: Limits of the store.
        counters: Counters for evictions.
        num_bytes: The object's size.
        stamp_ns: The object's last use.
        unwritten_bytes: Bytes of the object that are not yet on the file system.
    """

    contents: Contents
    bounds: Bounds
    counters: Counters
    num_bytes: int
    stamp_ns: int
    unwritten_bytes: int
    _stuck: set[ObjectName] = attrs.field(init=False, factory=set[ObjectName])

    def refusal(self) -> WriteOutcome | None:
        """Evict objects until there is room, or return the refusal.

        Only objects with an older use may be evicted. Otherwise the end of a chain larger than
        the store would evict the chain's middle.

        Returns:
            The refusal; None if there is room. If all evictable objects together are too
            small, the refusal comes before any eviction.
        """
        if self._exceeds_day():
            return WriteOutcome.DAILY_LIMIT
        scanned = False
        while (shortage := self._shortage()) is not None:
            missing_bytes, outcome = shortage
            victims = self.contents.index.oldest(missing_bytes, self.stamp_ns, self._stuck)
            if not scanned and self._is_astray(exhausted=not victims):
                self.contents.rescan()
                scanned = True
            elif not victims:
                return outcome
            else:
                self._evict(victims)
        return None

    def _exceeds_day(self) -> bool:
        limit = self.bounds.daily_write_bytes
        if limit is None:
            return False
        return self.contents.ledger.written_today_bytes + self.num_bytes > limit

    @property
    def is_short(self) -> bool:
        """Whether an eviction is needed; takes no lock."""
        return self._shortage() is not None

    def _shortage(self) -> tuple[int, WriteOutcome] | None:
        """Return the bytes to evict and the exceeded bound; None if there is room."""
        over = self.contents.ledger.num_bytes + self.num_bytes - self.bounds.quota_bytes
        free_bytes = self.contents.directory.free_bytes()
        short = self.bounds.min_free_bytes + self.unwritten_bytes - free_bytes
        if max(over, short) <= 0:
            return None
        return max(over, short), WriteOutcome.QUOTA if over > 0 else WriteOutcome.FREE_SPACE

    def _is_astray(self, *, exhausted: bool) -> bool:
        """Return whether a scan of the disk may find more to evict.

        Writes of other processes move the ledger away from the index; deletions by other
        programs move both away from the disk. After the clock is set back, all objects seem
        newer than the object that needs room.
        """
        index = self.contents.index
        drift_bytes = abs(self.contents.ledger.num_bytes - index.num_bytes)
        if not exhausted:
            return drift_bytes > self.bounds.quota_bytes // _MAX_DRIFT
        return drift_bytes > 0 or index.newest_ns > self.contents.clock()

    def _evict(self, victims: Sequence[ObjectInfo]) -> None:
        """Evict until there is room; an object that cannot be removed is skipped from then on.

        If a victim stays, later victims may be wrong, so the loop chooses again.
        """
        for victim in victims:
            try:
                removed = self.contents.remove_unused(victim)
            except OSError:
                self._stuck.add(victim.name)
                return
            self.counters.add(evictions=int(removed))
            if not removed or self._shortage() is None:
                return
