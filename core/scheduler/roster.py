"""The unfinished requests of a scheduler, by status."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from ..ids import RequestId
from .queue import WaitingQueue
from .request import Request


class Roster:
    """The requests of a scheduler.

    Attributes:
        running: Running requests, in arrival order.
        restoring: Admitted requests whose prefix is being read from disk.
        waiting: Requests without blocks.
    """

    def __init__(self) -> None:
        self.running: list[Request] = []
        self.restoring: list[Request] = []
        self.waiting = WaitingQueue()
        self._by_id: dict[RequestId, Request] = {}

    @property
    def admitted(self) -> Sequence[Request]:
        """Requests that hold blocks."""
        return [*self.running, *self.restoring]

    @property
    def all(self) -> Sequence[Request]:
        """Every request, running ones first."""
        return [*self.running, *self.restoring, *self.waiting]

    def get(self, request_id: RequestId) -> Request | None:
        """Return a request; None if the request has finished."""
        return self._by_id.get(request_id)

    def enter(self, request: Request) -> None:
        """Add a new request to the queue."""
        self._by_id[request.id] = request
        self.waiting.append(request)

    def run(self, request: Request) -> None:
        """Move a request to the running requests."""
        self.waiting.remove(request)
        if request in self.restoring:
            self.restoring.remove(request)
        bisect.insort(self.running, request, key=lambda r: r.id)

    def restore(self, request: Request) -> None:
        """Move a waiting request to the restoring requests."""
        self.waiting.remove(request)
        self.restoring.append(request)

    def send_back(self, request: Request) -> None:
        """Return an admitted request to the queue, before requests that never ran."""
        self._withdraw(request)
        self.waiting.push_front(request)

    def leave(self, request: Request) -> None:
        """Remove a request."""
        self._withdraw(request)
        self.waiting.remove(request)
        self._by_id.pop(request.id, None)

    def _withdraw(self, request: Request) -> None:
        for admitted in (self.running, self.restoring):
            if request in admitted:
                admitted.remove(request)
