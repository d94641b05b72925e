"""Preemption: takes the blocks of a request and requeues the request."""

from __future__ import annotations

from collections.abc import Sequence

from ..log import get_logger
from .cache_port import CachePort
from .request import Request, RequestStatus
from .restores import Restores
from .roster import Roster
from .telemetry import SchedulerCounters


def choose_victim(admitted: Sequence[Request]) -> Request:
    """Return the newest request that has made progress since its last preemption.

    The oldest request is never preempted while another one is admitted, so the oldest request
    finishes, and then each later one. A resumed request is skipped until its known tokens
    reach `protected_until`. If all requests are protected, the newest is returned.

    Args:
        admitted: Requests that hold blocks, in arrival order; at least one.
    """
    for request in reversed(admitted[1:]):
        if len(request.tokens) >= request.protected_until:
            return request
    return admitted[-1]


class Preemption:
    """Takes the blocks of admitted requests and returns the requests to the queue."""

    def __init__(
        self,
        cache: CachePort,
        roster: Roster,
        counters: SchedulerCounters,
        restores: Restores,
        block_size: int,
    ) -> None:
        """Make the preemption of a scheduler.

        Args:
            cache: The cache of all sequences.
            roster: The scheduler's requests.
            counters: The scheduler's counters.
            restores: Restores of prefixes on disk.
            block_size: Tokens of a block.
        """
        self._cache = cache
        self._roster = roster
        self._counters = counters
        self._restores = restores
        self._block_size = block_size
        self._log = get_logger("scheduler")

    def release(self, request: Request) -> None:
        """Release a request's sequence and drop its drafts."""
        request.drafts = ()
        if request.sequence is not None:
            self._cache.release(request.sequence)
            request.sequence = None

    def send_back(self, request: Request) -> None:
        """Return an admitted request to the queue, before requests that never ran."""
        self._restores.stop(request)
        self.release(request)
        request.move(RequestStatus.PREEMPTED)
        self._roster.send_back(request)

    def preempt(self) -> tuple[Request, bool]:
        """Preempt one request. Its published blocks stay cached until eviction.

        Returns:
            The request, and whether its blocks were written to disk before.
        """
        victim = choose_victim(sorted(self._roster.admitted, key=lambda r: r.id))
        self._cache.publish(victim.sequence)
        spilled = self._restores.spill(victim)
        self.send_back(victim)
        victim.preemptions += 1
        # without a block of progress, the same request would be preempted in the next step
        victim.protected_until = len(victim.tokens) + self._block_size
        self._count(victim, spilled=spilled)
        return victim, spilled

    def _count(self, victim: Request, *, spilled: bool) -> None:
        self._counters.preemptions += 1
        self._counters.preemptions_ssd += spilled
        self._counters.preemptions_recompute += not spilled
        mode, tokens = "spill" if spilled else "recompute", len(victim.tokens)
        self._log.info(
            "scheduler.request.preempted", request=victim.id, tokens=tokens, mode=mode
        )
