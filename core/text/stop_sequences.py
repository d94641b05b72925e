"""Cut a text stream at the first stop sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopMatcher:
    """Lets text through until a stop sequence begins.

    The result depends on the text alone, never on how it was cut into pieces: the stop that
    begins earliest wins, and of several that begin there the shortest. So a found stop waits
    while an earlier one could still be completed.

    Attributes:
        matched: The stop sequence that ended the text, or None.

    Raises:
        ValueError: A stop sequence is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise ValueError("a stop sequence must not be empty")
        self._stops = tuple(sorted(stops, key=len))
        self._longest = max(map(len, stops), default=0)
        self._held = ""
        self.matched: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop sequence has ended the text."""
        return self.matched is not None

    def add(self, text: str) -> str:
        """Take the next piece; return what may be shown, which may end before the piece does.

        Nothing of a stop sequence comes out, and nothing after it.
        """
        if self.stopped:
            return ""
        self._held += text
        start, stop = self._first_match()
        open_start = self._first_open_start()
        if stop is not None and start < open_start:
            self.matched = stop
            return self._release(start)
        return self._release(open_start)

    def finish(self) -> str:
        """Return what was held back, now that no more text comes."""
        if self.stopped:
            return ""
        start, self.matched = self._first_match()
        return self._release(start)

    def _first_match(self) -> tuple[int, str | None]:
        """Where the earliest complete stop begins, and which it is; else the end and None."""
        found = [(start, s) for s in self._stops if (start := self._held.find(s)) >= 0]
        return min(found, key=lambda match: match[0], default=(len(self._held), None))

    def _first_open_start(self) -> int:
        """Where the longest suffix begins that a stop could still grow from; else the end."""
        end = len(self._held)
        for start in range(max(0, end - self._longest + 1), end):
            if any(
                len(s) > end - start and s.startswith(self._held[start:]) for s in self._stops
            ):
                return start
        return end

    def _release(self, end: int) -> str:
        released = self._held[:end]
        self._held = "" if self.stopped else self._held[end:]
        return released
