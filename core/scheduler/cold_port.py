"""The scheduler's interface to the cold tier."""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from .request import Request


@attrs.frozen
class RestoreProgress:
    """The progress of a restore since the last `advance`.

    Attributes:
        num_tokens: Tokens whose blocks were written to pages.
        done: Whether the restore has ended.
        state: The restored state at the end of the restored tokens; None without a sidecar,
            or before the end.
    """

    num_tokens: int
    done: bool
    state: Any = None


class ColdPort(Protocol):
    """Prefixes on disk."""

    def propose(self, request: Request, hit_length: int) -> int:
        """Return how many tokens behind a hit can be restored, a multiple of the block size.

        The miss cause is set on the request.
        """
        ...

    def begin(self, request: Request) -> None:
        """Begin the proposed restore. The request's sequence must have blocks for it."""
        ...

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Write the data that was read into the request's blocks; never waits.

        Args:
            request: The request.
            idle: Whether no other request runs, so that large portions delay no step.
        """
        ...

    def cancel(self, request: Request) -> None:
        """Cancel the restore of a request; a request without a restore is ignored."""
        ...

    def spill(self, request: Request) -> bool:
        """Write a running request's blocks to disk before preemption, if writing pays.

        Returns:
            Whether all published blocks were written.
        """
        ...
