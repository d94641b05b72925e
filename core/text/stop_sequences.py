"""Truncation of a text stream at the first stop sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopMatcher:
    """Passes text on until a stop sequence begins.

    The result depends on the text alone, never on the cuts between pieces. The stop with the
    earliest start wins; of several with one start, the shortest. A complete stop therefore
    waits while a stop with an earlier start may still be completed.

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
        """Take the next piece; return the text that is final, which may be less or more.

        The result never contains a part of a stop sequence, nor text behind it.
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
        """Return the text that was held back, at the end of the stream."""
        if self.stopped:
            return ""
        start, self.matched = self._first_match()
        return self._release(start)

    def _first_match(self) -> tuple[int, str | None]:
        """Return start and text of the earliest complete stop; else the end and None."""
        found = [(start, s) for s in self._stops if (start := self._held.find(s)) >= 0]
        return min(found, key=lambda match: match[0], default=(len(self._held), None))

    def _first_open_start(self) -> int:
        """Return the start of the longest suffix that begins a stop; else the end."""
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
