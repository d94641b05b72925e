"""The queue of waiting requests."""

from __future__ import annotations

from collections.abc import Iterator

from .request import Request


class WaitingQueue:
    """First come, first served. Preempted requests come before requests that never ran."""

    def __init__(self) -> None:
        # ids rise in arrival order
        self._requests: dict[int, Request] = {}
        self._resumed: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests) + len(self._resumed)

    def __iter__(self) -> Iterator[Request]:
        yield from [self._resumed[i] for i in sorted(self._resumed)]
        yield from list(self._requests.values())

    def append(self, request: Request) -> None:
        """Add a new request at the end."""
        self._requests[request.id] = request

    def push_front(self, request: Request) -> None:
        """Add a preempted request; preempted requests are in arrival order."""
        self._resumed[request.id] = request

    def remove(self, request: Request) -> None:
        """Remove a request; an absent request is ignored."""
        self._resumed.pop(request.id, None)
        self._requests.pop(request.id, None)
