"""The ends of this process's captures, which explain later misses there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from ...ids import ColdKey
from .capture import Capture, StopReason

MAX_REMEMBERED_ENDS = 4096

_CAUSES: Mapping[StopReason | None, str] = {
    StopReason.BUDGET: "budget",
    StopReason.DEADLINE: "budget",
    StopReason.REFUSED: "quota",
}


class Ends:
    """The ends of the latest captures, by the key of the first block that was not written."""

    def __init__(self) -> None:
        self._ends: OrderedDict[ColdKey, str] = OrderedDict()

    def cause(self, key: ColdKey) -> str | None:
        """Return why a walk ended before a block; None without a known end there."""
        return self._ends.get(key)

    def remember(self, capture: Capture) -> None:
        """Record why a walk ended; earlier ends along the walk are forgotten."""
        cause, reach = _CAUSES.get(capture.stop), capture.reach
        # blocks that the store refused had been given to the writer, and count as reached
        first = 0 if capture.stop is StopReason.REFUSED else reach
        for index, name in enumerate(capture.names[: reach + 1]):
            self._ends.pop(name.key, None)
            if cause is not None and index >= first:
                self._ends[name.key] = cause
        while len(self._ends) > MAX_REMEMBERED_ENDS:
            self._ends.popitem(last=False)
