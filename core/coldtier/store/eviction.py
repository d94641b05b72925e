"""Who has to go so that an object can come."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..objects.keys import ObjectName
from ..stats import Counters
from .contents import Contents
from .index import ObjectInfo
from .quota import Bounds, WriteOutcome

_MAX_DRIFT = 16  # index and ledger may differ by this part of the quota


@attrs.define(eq=False)
class Admission:
    """One object's way into a store; needs the store's lock.

    Attributes:
        contents: The store.
        bounds: What it may take.
        counters: Where evictions are counted.
        num_bytes: The object's size.
        stamp_ns: Its last use.
        unwritten_bytes: What of it the file system has yet to take.
    """

    contents: Contents
    bounds: Bounds
    counters: Counters
    num_bytes: int
    stamp_ns: int
    unwritten_bytes: int
    _stuck: set[ObjectName] = attrs.field(init=False, factory=set[ObjectName])

    def refusal(self) -> WriteOutcome | None:
        """Evict what is in the object's way.

        An object may only displace what was used before it. Otherwise the end of a chain
        that is larger than the store would push out its middle.

        Returns:
            Why it gets no room, None if it has it. It is refused before anything is evicted
            if all that may be evicted would not do.
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
        """Whether something has to go; needs no lock."""
        return self._shortage() is not None

    def _shortage(self) -> tuple[int, WriteOutcome] | None:
        """Return how many bytes have to go, and which bound asks for it."""
        over = self.contents.ledger.num_bytes + self.num_bytes - self.bounds.quota_bytes
        free_bytes = self.contents.directory.free_bytes()
        short = self.bounds.min_free_bytes + self.unwritten_bytes - free_bytes
        if max(over, short) <= 0:
            return None
        return max(over, short), WriteOutcome.QUOTA if over > 0 else WriteOutcome.FREE_SPACE

    def _is_astray(self, *, exhausted: bool) -> bool:
        """Return whether a scan may find what can be evicted.

        The index drifts from the ledger by what other processes do, and both drift from the
        disk when somebody deletes objects. A clock that was set back makes all objects seem
        newer than the one that needs their room.
        """
        index = self.contents.index
        drift_bytes = abs(self.contents.ledger.num_bytes - index.num_bytes)
        if not exhausted:
            return drift_bytes > self.bounds.quota_bytes // _MAX_DRIFT
        return drift_bytes > 0 or index.newest_ns > self.contents.clock()

    def _evict(self, victims: Sequence[ObjectInfo]) -> None:
        """Evict until there is room; what cannot be removed is passed over from now on.

        Where an object stays, those behind it were chosen in vain, and a new choice is due.
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
