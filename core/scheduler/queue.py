"""Turns that do not run."""

from __future__ import annotations

from collections.abc import Iterator

from .turn import Turn


class WaitingQueue:
    """First come, first served; a preempted turn keeps its place before later arrivals."""

    def __init__(self) -> None:
        # insertion-ordered by key; ids rise in arrival order, so a resumed turn goes first
        self._turns: dict[int, Turn] = {}
        self._resumed: dict[int, Turn] = {}

    def __len__(self) -> int:
        return len(self._turns) + len(self._resumed)

    def __iter__(self) -> Iterator[Turn]:
        yield from [self._resumed[i] for i in sorted(self._resumed)]
        yield from list(self._turns.values())

    def append(self, turn: Turn) -> None:
        """Add a new arrival at the end."""
        self._turns[turn.id] = turn

    def push_front(self, turn: Turn) -> None:
        """Add a preempted turn before all new arrivals, among its like by arrival."""
        self._resumed[turn.id] = turn

    def remove(self, turn: Turn) -> None:
        """Take a turn out, wherever it stands."""
        self._resumed.pop(turn.id, None)
        self._turns.pop(turn.id, None)
