"""Admission of requests from the queue."""

from __future__ import annotations

import itertools
from typing import Any

from ..ids import RequestId, SequenceId
from ..settings import SchedulerSettings
from .cache_port import CachePort
from .request import Request, RequestStatus
from .restores import Restores
from .roster import Roster
from .telemetry import SchedulerCounters


class Admission:
    """Admits requests in arrival order while the cache has room."""

    def __init__(
        self,
        settings: SchedulerSettings,
        cache: CachePort,
        roster: Roster,
        counters: SchedulerCounters,
        restores: Restores,
    ) -> None:
        """Make the admission of a scheduler.

        Args:
            settings: Limits and budgets.
            cache: The cache of all sequences.
            roster: The scheduler's requests.
            counters: The scheduler's counters.
            restores: Restores of prefixes on disk.
        """
        self._settings = settings
        self._cache = cache
        self._roster = roster
        self._counters = counters
        self._restores = restores
        self._next_sequence = 0
        # request -> `num_publications` when the request began to wait for a prefix
        self._deferred: dict[RequestId, int] = {}

    @property
    def has_place(self) -> bool:
        """Whether the limit on running requests allows one more request."""
        return len(self._roster.admitted) < self._settings.max_num_seqs

    def forget(self, request: Request) -> None:
        """Drop the record of a finished request."""
        self._deferred.pop(request.id, None)

    def steps_aside(self, request: Request) -> bool:
        """Return whether a request still waits for a prefix: nothing was published since."""
        return self._deferred.get(request.id) == self._cache.num_publications

    def try_admit(self, request: Request) -> bool:
        """Admit a request, or defer the request until a pending prefix is published.

        Returns:
            False if the cache lacks blocks for the request.
        """
        self._open(request)
        hit = self._cache.match_prefix(request.sequence)
        if hit.awaited > hit.length:
            self._deferred[request.id] = self._cache.num_publications
            self._counters.admission_deferred_prefix += 1
            return True
        room = self._needed_tokens(request, hit.length)
        if not self._cache.admits(hit, room, self.reservations(), self.watermark()):
            self._counters.admission_deferred_blocks += 1
            return False
        if request.cached_tokens is None:
            request.held_tokens = hit.length + hit.unbacked
        extension = self._restores.propose(request, hit.length)
        self._cache.attach(request.sequence, hit)
        self._deferred.pop(request.id, None)
        self._counters.admitted += 1
        if not (extension and self._restores.begin(request, extension)):
            self.start(request)
        return True

    def start(self, request: Request) -> None:
        """Start an admitted request at the end of its prefix."""
        request.move(RequestStatus.RUNNING)
        request.grid_origin = request.sequence.frontier
        request.boundaries = self._boundaries(request)
        self._cache.snapshots.promise(request.sequence, request.boundaries)
        if request.cached_tokens is None:
            request.cached_tokens = request.sequence.frontier
        self._roster.run(request)

    def _open(self, request: Request) -> Any:
        """Return the sequence of a request; a request without a sequence gets a new one."""
        if request.sequence is None:
            request.sequence = self._cache.open(
                SequenceId(self._next_sequence),
                request.tokens,
                salt=request.salt,
                extra_keys=request.extra_keys,
                owner=request.owner,
            )
            self._next_sequence += 1
        return request.sequence

    def _boundaries(self, request: Request) -> list[int]:
        """Return the boundaries of a prefill: its own and those shared with the queue."""
        snapshots, frontier = self._cache.snapshots, request.sequence.frontier
        waiting = itertools.islice(self._roster.waiting, self._settings.max_num_seqs)
        shared = {
            snapshots.shared_prefix(request.sequence, self._open(other))
            for other in waiting
            # a request that was just preempted may have tokens that the host has not read
            if other is not request and other.salt == request.salt and not other.awaits_tokens
        }
        own = snapshots.boundaries(request.sequence)
        return sorted({*own, *(boundary for boundary in shared if boundary > frontier)})

    def _needed_tokens(self, request: Request, hit_length: int) -> int:
        """Return the length in tokens that must fit the cache before a request starts."""
        end = len(request.tokens)
        if self._settings.reserve_full_prompt:
            return end
        return min(end, hit_length + self._settings.max_batched_tokens)

    def reservations(self) -> list[tuple[Any, int]]:
        """Return the admitted sequences with the tokens that they have reserved room for."""
        if not self._settings.reserve_full_prompt:
            return []
        return [(r.sequence, len(r.tokens)) for r in self._roster.admitted]

    def watermark(self) -> float:
        """Return the fraction of blocks kept free while requests run; 0 if none is admitted."""
        return self._settings.watermark_fraction if self._roster.admitted else 0.0
