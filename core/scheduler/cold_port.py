"""What the scheduler asks of a cold tier, if there is one."""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from .request import Request


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

    def propose(self, request: Request, hit_length: int) -> int:
        """Return how many tokens behind a hit can be restored, a multiple of the block size.

        Notes on the request why not more.
        """
        ...

    def begin(self, request: Request) -> None:
        """Begin the restore that was proposed; the request's sequence has room for it."""
        ...

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Write what has arrived into the request's blocks; never waits.

        Args:
            request: The request.
            idle: No other request is held up by a large portion.
        """
        ...

    def cancel(self, request: Request) -> None:
        """Give up a restore that has begun; harmless for any other request."""
        ...

    def spill(self, request: Request) -> bool:
        """Write a running request's blocks before they are taken, if that is worth it."""
        ...
