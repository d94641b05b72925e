"""The choice of objects to evict: unrestorable objects, then the oldest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import attrs

from ..objects.keys import ObjectName
from .lineage import Lineage
from .recency import Entry

GRACE_NS = 60 * 10**9
"""How long after its use a block may wait for its sidecar. A walk writes blocks first and
sidecars last, so an evicting process must not take the blocks in between."""


@attrs.define(eq=False)
class Victims:
    """A choice in progress.

    Attributes:
        entries: All objects.
        lineage: Dependencies of the objects.
        missing_bytes: Bytes that are still to be freed.
        until_ns: Only objects with a last use up to this time; None for all.
        skip: Objects to pass over.
        whole: Choose all objects that depend on a chosen one, even beyond `missing_bytes`.
        chosen: The chosen objects, in order.
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
        """Choose entries, the oldest first, until enough bytes are freed."""
        for name, entry in entries:
            if not self._is_allowed(entry.stamp_ns):
                return
            self._take(name)
            if self.missing_bytes <= 0:
                return

    def _is_allowed(self, stamp_ns: int) -> bool:
        """Return whether an object with this last use may be chosen."""
        return self.until_ns is None or stamp_ns <= self.until_ns

    def take_lost(self) -> None:
        """Choose among the objects that cannot be restored any more, the oldest first."""
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
        """Choose an object, and the objects that cannot be restored without it."""
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
