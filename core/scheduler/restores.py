"""Requests whose prefix is being read from disk."""

from __future__ import annotations

from ..errors import CacheExhaustedError
from .cache_port import CachePort
from .cold_port import ColdPort
from .request import Request, RequestStatus
from .roster import Roster
from .telemetry import SchedulerCounters


class Restores:
    """Begins, advances and cancels restores."""

    def __init__(
        self,
        cache: CachePort,
        roster: Roster,
        counters: SchedulerCounters,
        cold: ColdPort | None,
    ) -> None:
        """Make the restores of a scheduler.

        Args:
            cache: The cache of all sequences.
            roster: The scheduler's requests.
            counters: The scheduler's counters.
            cold: The cold tier; None without one.
        """
        self._cache = cache
        self._roster = roster
        self._counters = counters
        self._cold = cold

    def propose(self, request: Request, hit_length: int) -> int:
        """Return how many tokens behind a hit can be restored; see `ColdPort.propose`."""
        return 0 if self._cold is None else self._cold.propose(request, hit_length)

    def begin(self, request: Request, num_tokens: int) -> bool:
        """Reserve blocks and begin the proposed restore; return False if blocks are missing."""
        assert self._cold is not None
        try:
            self._cache.reserve_restore(request.sequence, num_tokens)
        except CacheExhaustedError:
            self._cold.cancel(request)
            return False
        request.move(RequestStatus.WAITING_FOR_SSD)
        self._roster.restore(request)
        self._cold.begin(request)
        self._counters.ssd_restores += 1
        return True

    def advance(self, request: Request) -> bool:
        """Commit the restored tokens; return whether the restore has ended."""
        assert self._cold is not None
        progress = self._cold.advance(request, idle=not self._roster.running)
        self._cache.commit(request.sequence, progress.num_tokens)
        self._cache.publish(request.sequence)
        if progress.state is not None:
            self._cache.snapshots.reach(request.sequence, progress.state, shared=True)
        if request.cached_tokens is None:
            request.restored_tokens += progress.num_tokens
        if progress.done:
            missing = request.sequence.cursor - request.sequence.frontier
            self._cache.rewind(request.sequence, missing)
        return progress.done

    def stop(self, request: Request) -> None:
        """Cancel the restore of a request; a request without a restore is ignored."""
        if request.status is RequestStatus.WAITING_FOR_SSD:
            assert self._cold is not None
            self._cold.cancel(request)
            if request.cached_tokens is None:
                # the next admission finds the published blocks of the restore in memory
                request.restored_tokens = 0

    def spill(self, request: Request) -> bool:
        """Write a running request's blocks to disk before preemption; see `ColdPort.spill`."""
        running = request.status is RequestStatus.RUNNING
        return running and self._cold is not None and self._cold.spill(request)
