"""Which objects go so that others can come: what is lost anyway, then the oldest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from ..objects.keys import ObjectName
from .lineage import Lineage
from .recency import Entry

GRACE_NS = 60 * 10**9
"""For so long after its use a block may wait for the state that makes it of use. A walk writes
blocks first and states last, and must not be overtaken by another process that evicts."""


@attrs.define(eq=False)
class Victims:
    """A choice under way.

    Attributes:
        entries: All objects.
        lineage: What they need.
        missing_bytes: What the chosen ones still lack.
        until_ns: Only objects that were last used by then; None for all.
        skip: Objects to pass over.
        whole: Choose all that is lost with another, whether it is needed or not.
        chosen: The choice, in order.
    """

    entries: Mapping[ObjectName, Entry]
    lineage: Lineage
    missing_bytes: int
    until_ns: int | None
    skip: Collection[ObjectName]
    whole: bool
    chosen: dict[ObjectName, None] = attrs.field(init=False, factory=dict[ObjectName, None])
    _spent: dict[ObjectName, int] = attrs.field(init=False, factory=dict[ObjectName, int])

    def take_all(self, entries: Iterable[tuple[ObjectName, Entry]]) -> None:
        """Choose entries, the oldest first, until nothing is missing."""
        for name, entry in entries:
            if not self._is_allowed(entry.stamp_ns):
                return
            self._take(name)
            if self.missing_bytes <= 0:
                return

    def _is_allowed(self, stamp_ns: int) -> bool:
        """Return whether objects of that last use may go."""
        return self.until_ns is None or stamp_ns <= self.until_ns

    def take_lost(self) -> None:
        """Choose among what cannot be restored any more, the oldest first."""
        lost = [
            (self.entries[name].stamp_ns, name)
            for name, was_restorable in self.lineage.lost.items()
            if was_restorable or self._is_settled(self.entries[name].stamp_ns)
        ]
        for _, name in sorted(lost, key=lambda item: item[0]):
            if self.missing_bytes <= 0:
                return
            self._choose(name)

    def _is_settled(self, stamp_ns: int) -> bool:
        return self.until_ns is None or stamp_ns <= self.until_ns - GRACE_NS

    def _take(self, name: ObjectName) -> None:
        """Choose an object, and what cannot be restored without it."""
        if not self._choose(name):
            return
        for lost in self.lineage.losses(name, self._spent):
            if self.missing_bytes > 0 or self.whole:
                self._choose(lost)

    def _choose(self, name: ObjectName) -> bool:
        entry = self.entries[name]
        if name in self.chosen or name in self.skip or not self._is_allowed(entry.stamp_ns):
            return False
        self.chosen[name] = None
        self.missing_bytes -= entry.num_bytes
        return True
