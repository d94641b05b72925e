"""The engine's side of the cold tier."""

from __future__ import annotations

import time

from ..coldtier.stats import ColdCacheStats, ColdSidecarStats
from ..coldtier.tier import ColdTier
from ..scheduler.cold_port import RestoreProgress
from ..scheduler.request import Request
from ..scheduler.telemetry import SchedulerCounters
from ..telemetry.trace import Trace
from .captures import Captures
from .identification import Identification
from .lanes import PagedLane
from .restores import Restores
from .sidecars import sidecars_of


class EngineCold:
    """Restores and captures of one cold tier. Implements `scheduler.cold_port.ColdPort`.

    Owned by the engine thread.

    Attributes:
        tier: The cold tier.
        restores: Restores of prefixes from disk.
        captures: Captures of blocks to disk.
        identification: The thread that computes the model's fingerprint.
    """

    def __init__(
        self,
        tier: ColdTier,
        lane: PagedLane,
        *,
        counters: SchedulerCounters,
        trace: Trace,
        may_spill: bool,
        identity: Identification,
        drain_timeout_s: float,
    ) -> None:
        """Connect a tier with a lane; see `Restores` and `Captures`.

        Args:
            tier: The cold tier.
            lane: The lane whose pools are read and written.
            counters: The scheduler's counters.
            trace: The destination of events.
            may_spill: Whether running requests may be written before preemption.
            identity: The identification of the model.
            drain_timeout_s: Seconds that `close` waits for the disk.
        """
        self.tier = tier
        self.identification = identity
        sidecars = sidecars_of(lane, tier.policy)
        self.restores = Restores(tier, lane, sidecars, counters, trace)
        self.captures = Captures(
            tier, lane, sidecars, trace, may_spill=may_spill, identity=identity
        )
        self._drain_timeout_s = drain_timeout_s

    def propose(self, request: Request, hit_length: int) -> int:
        """Return how many tokens behind a hit can be restored."""
        return self.restores.propose(request, hit_length)

    def begin(self, request: Request) -> None:
        """Begin the proposed restore; see `Restores.begin`."""
        self.restores.begin(request)

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Write the data that was read into the request's blocks; see `Restores.advance`."""
        return self.restores.advance(request, idle=idle)

    def cancel(self, request: Request) -> None:
        """Cancel a restore."""
        self.restores.cancel(request)

    def spill(self, request: Request) -> bool:
        """Write a running request's published blocks now; see `Captures.spill`."""
        return self.captures.spill(request)

    def record_step(self, num_tokens: int, seconds: float) -> None:
        """Record the time of a step that contains prefill."""
        self.tier.cost.prefill.record(num_tokens, seconds * 1e6)

    def stats(self) -> tuple[ColdCacheStats, ColdSidecarStats]:
        """Return the present counts."""
        return self.tier.stats()

    def flush(self, deadline: float) -> bool:
        """Finish queued captures, within their budgets, and wait for the writer.

        Args:
            deadline: End of the flush on the clock of `time.monotonic`.

        Returns:
            Whether the writer finished all its writes.
        """
        self.captures.flush(deadline)
        return self.tier.drain(max(0.0, deadline - time.monotonic()))

    def close(self) -> bool:
        """Flush and end the threads; return whether the writer finished all its writes."""
        deadline = time.monotonic() + self._drain_timeout_s
        try:
            self.flush(deadline)
            self.captures.give_up()
        finally:
            try:
                self.identification.close()
            finally:
                landed = self.tier.close(max(0.0, deadline - time.monotonic()))
        return landed


def cold_stats(cold: EngineCold | None) -> tuple[ColdCacheStats, ColdSidecarStats]:
    """Return the counts of a cold tier; zeros and `enabled=False` without one."""
    return (ColdCacheStats(), ColdSidecarStats()) if cold is None else cold.stats()
