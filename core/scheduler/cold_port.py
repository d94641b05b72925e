"""What the scheduler asks of a cold tier, if there is one."""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from .turn import Turn


@attrs.frozen
class RestoreProgress:
    """What one look at a restore brought.

    Attributes:
        num_tokens: Tokens whose blocks have been written since the last look.
        done: Nothing more will come.
        state: State at the end of them, for others to find; None without recurrent layers.
    """

    num_tokens: int
    done: bool
    state: Any = None


class ColdPort(Protocol):
    """Prefixes that memory has lost, or never had."""

    def propose(self, turn: Turn, hit_length: int) -> int:
        """Return how many tokens behind a hit can be restored, a multiple of the block size.

        Notes on the turn why not more.
        """
        ...

    def begin(self, turn: Turn) -> None:
        """Begin the restore that was proposed; the turn's sequence has room for it."""
        ...

    def advance(self, turn: Turn, *, idle: bool) -> RestoreProgress:
        """Write what has arrived into the turn's blocks; never waits.

        Args:
            turn: The turn.
            idle: No other turn is held up by a large portion.
        """
        ...

    def cancel(self, turn: Turn) -> None:
        """Give up a restore that has begun; harmless for any other turn."""
        ...

    def spill(self, turn: Turn) -> bool:
        """Write a running turn's blocks before they are taken, if that is worth it."""
        ...
