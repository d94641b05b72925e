"""Requests that do not run."""

from __future__ import annotations

from collections.abc import Iterator

from .request import Request


class WaitingQueue:
    """First come, first served; a preempted request keeps its place before later arrivals."""

    def __init__(self) -> None:
        # insertion-ordered by key; ids rise in arrival order, so a resumed request goes first
        self._requests: dict[int, Request] = {}
        self._resumed: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._requests) + len(self._resumed)

    def __iter__(self) -> Iterator[Request]:
        yield from [self._resumed[i] for i in sorted(self._resumed)]
        yield from list(self._requests.values())

    def append(self, request: Request) -> None:
        """Add a new arrival at the end."""
        self._requests[request.id] = request

    def push_front(self, request: Request) -> None:
        """Add a preempted request before all new arrivals, among its like by arrival."""
        self._resumed[request.id] = request

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it stands."""
        self._resumed.pop(request.id, None)
        self._requests.pop(request.id, None)
