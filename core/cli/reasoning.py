"""Tell reasoning from answer while a text is still being written."""

from __future__ import annotations


class ReasoningStream:
    """Cuts a stream of text at the marks of a family's reasoning parts.

    A mark belongs to the reasoning, and may come in several pieces.
    """

    def __init__(self, marks: tuple[str, str] | None, *, inside: bool = False) -> None:
        """Start a text.

        Args:
            marks: Opening and closing mark, None if the family has none.
            inside: The prompt ended with the opening mark.
        """
        self._marks = marks
        self._inside = inside
        self._held = ""

    def add(self, text: str) -> list[tuple[str, bool]]:
        """Return what became certain, in parts: text, and whether it is reasoning."""
        if self._marks is None:
            return [(text, False)]
        self._held += text
        parts: list[tuple[str, bool]] = []
        while (mark := self._marks[self._inside]) in self._held:
            before, _, self._held = self._held.partition(mark)
            parts += [(before, self._inside), (mark, True)]
            self._inside = not self._inside
        certain = len(self._held) - _overlap(self._held, mark)
        parts.append((self._held[:certain], self._inside))
        self._held = self._held[certain:]
        return [part for part in parts if part[0]]

    def finish(self) -> list[tuple[str, bool]]:
        """Return what was held back, now that no more text comes."""
        rest, self._held = self._held, ""
        return [(rest, self._inside)] if rest else []


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
