"""Whom a step takes blocks from, and what becomes of the victim."""

from __future__ import annotations

from collections.abc import Sequence

from ..log import get_logger
from .cache_port import CachePort
from .request import Request, RequestStatus
from .restores import Restores
from .roster import Roster
from .telemetry import SchedulerCounters


def choose_victim(admitted: Sequence[Request]) -> Request:
    """Return the newest arrival that has made progress since it was last a victim.

    The oldest request is never taken while another one runs, so it finishes, and so does
    each after it. A resumed request is passed over until it has made the progress that
    `protected_until` asks for, unless all are protected: then the newest is taken.

    Args:
        admitted: Requests that hold blocks in arrival order, at least one.
    """
    for request in reversed(admitted[1:]):
        if len(request.tokens) >= request.protected_until:
            return request
    return admitted[-1]


class Preemption:
    """Takes the blocks of admitted requests and sends the requests back to the queue."""

    def __init__(
        self,
        cache: CachePort,
        roster: Roster,
        counters: SchedulerCounters,
        restores: Restores,
        block_size: int,
    ) -> None:
        """Prepare for the victims of a scheduler.

        Args:
            cache: The cache of all sequences.
            roster: The scheduler's requests.
            counters: Counts to add to.
            restores: Of prefixes on disk.
            block_size: Tokens of a block.
        """
        self._cache = cache
        self._roster = roster
        self._counters = counters
        self._restores = restores
        self._block_size = block_size
        self._log = get_logger("scheduler")

    def release(self, request: Request) -> None:
        """Give back whatever a request holds."""
        request.drafts = ()
        if request.sequence is not None:
            self._cache.release(request.sequence)
            request.sequence = None

    def send_back(self, request: Request) -> None:
        """Send an admitted request back to the queue, before all new arrivals."""
        self._restores.stop(request)
        self.release(request)
        request.move(RequestStatus.PREEMPTED)
        self._roster.send_back(request)

    def preempt(self) -> tuple[Request, bool]:
        """Take the blocks of one request; full committed blocks stay to be found again.

        Returns:
            The victim, and whether its blocks were written to disk before.
        """
        victim = choose_victim(sorted(self._roster.admitted, key=lambda r: r.id))
        self._cache.publish(victim.sequence)
        spilled = self._restores.spill(victim)
        self.send_back(victim)
        victim.preemptions += 1
        # a whole block of progress, or the victim of now would be the victim of the next step
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
