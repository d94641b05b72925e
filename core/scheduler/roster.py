"""Every request that has not finished, by where it is."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from ..ids import RequestId
from .queue import WaitingQueue
from .request import Request


class Roster:
    """The requests of a scheduler.

    Attributes:
        running: Requests that compute, in arrival order.
        restoring: Requests whose blocks are reserved and are being read from disk.
        waiting: Requests that hold nothing.
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
        """Return a request, None if it has finished."""
        return self._by_id.get(request_id)

    def enter(self, request: Request) -> None:
        """Take a new arrival into the queue."""
        self._by_id[request.id] = request
        self.waiting.append(request)

    def run(self, request: Request) -> None:
        """Let a request run, in its place by arrival."""
        self.waiting.remove(request)
        if request in self.restoring:
            self.restoring.remove(request)
        bisect.insort(self.running, request, key=lambda r: r.id)

    def restore(self, request: Request) -> None:
        """Let a request wait for the disk."""
        self.waiting.remove(request)
        self.restoring.append(request)

    def send_back(self, request: Request) -> None:
        """Put an admitted request before all new arrivals of the queue."""
        self._withdraw(request)
        self.waiting.push_front(request)

    def leave(self, request: Request) -> None:
        """Strike a request off, wherever it is."""
        self._withdraw(request)
        self.waiting.remove(request)
        self._by_id.pop(request.id, None)

    def _withdraw(self, request: Request) -> None:
        for admitted in (self.running, self.restoring):
            if request in admitted:
                admitted.remove(request)
