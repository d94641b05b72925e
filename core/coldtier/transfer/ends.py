"""Where walks of this process ended, and why: the cause of the next miss there."""

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
        """Return why a walk ended before a block; None if none did, as far as is known."""
        return self._ends.get(key)

    def remember(self, capture: Capture) -> None:
        """Note why there is no more of a chain; where it goes on now is no end any longer."""
        cause, reach = _CAUSES.get(capture.stop), capture.reach
        # what the store has refused was handed to the writer before, and counts as reached
        first = 0 if capture.stop is StopReason.REFUSED else reach
        for index, name in enumerate(capture.names[: reach + 1]):
            self._ends.pop(name.key, None)
            if cause is not None and index >= first:
                self._ends[name.key] = cause
        while len(self._ends) > MAX_REMEMBERED_ENDS:
            self._ends.popitem(last=False)
