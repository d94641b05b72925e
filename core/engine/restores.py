"""Restores: from the cold tier's bytes to the pools' arrays.

admission   propose, begin   the scheduler reserves blocks in between
each step   advance          blocks that were read are written to the pools
"""

from __future__ import annotations

import time

import attrs

from ..coldtier.objects.keys import ColdChain
from ..coldtier.tier import ColdTier
from ..coldtier.transfer.reader import PORTION_BLOCKS
from ..coldtier.transfer.ticket import Ticket
from ..coldtier.transfer.walk import RestorePlan
from ..ids import RequestId
from ..kvcache.block_identity import PrefixChain
from ..kvcache.state_keeper import KeptState
from ..scheduler.cold_port import RestoreProgress
from ..scheduler.request import Request
from ..scheduler.telemetry import SchedulerCounters
from ..telemetry.trace import Trace
from .lanes import PagedLane
from .sidecars import Sidecars

RESTORE_BLOCKS_PER_STEP = 3
"""Blocks per portion while other requests run. The next step waits for the portion."""


def cold_chain(tier: ColdTier, prefix: PrefixChain) -> ColdChain | None:
    """Return the cold keys of a sequence; None before the model's fingerprint is known.

    Restores and captures both use this function, so every key depends on the salt and the
    extra keys of a sequence.
    """
    return tier.chain(prefix.salt, prefix.extra_keys)


@attrs.define(eq=False)
class _Restore:
    """A proposed or running restore."""

    chain: ColdChain
    plan: RestorePlan
    began_at: float = 0.0
    ticket: Ticket | None = None
    num_written: int = 0
    paced: bool = False


class Restores:
    """The restores of a running engine. Owned by the engine thread.

    Attributes:
        wrote: Whether pools have unevaluated writes of restores. The stepper resets the flag.
    """

    def __init__(
        self,
        tier: ColdTier,
        lane: PagedLane,
        sidecars: Sidecars | None,
        counters: SchedulerCounters,
        trace: Trace,
    ) -> None:
        """Make the restores of an engine.

        Args:
            tier: The cold tier.
            lane: The lane whose pools are written.
            sidecars: The model's sidecars; None if blocks hold the whole cache.
            counters: The scheduler's counters.
            trace: The destination of events.
        """
        self.wrote = False
        self._tier = tier
        self._cache = lane.cache
        self._group = lane.layout.primary
        self._pool = lane.pools[self._group]
        self._sidecars = sidecars
        self._counters = counters
        self._trace = trace
        self._restores: dict[RequestId, _Restore] = {}

    def propose(self, request: Request, hit_length: int) -> int:
        """Return how many tokens behind a hit can be restored; set the miss cause."""
        size = self._cache.block_size
        first, limit = hit_length // size, (len(request.tokens) - 1) // size
        self._note(request, None)
        if first >= limit:
            return 0
        chain = cold_chain(self._tier, request.sequence.chain)
        if chain is None:
            self._note(request, "fingerprint")
            return 0
        plan = self._tier.plan(chain, request.tokens, first, limit, request.salt)
        self._note(request, plan.cause)
        if plan.num_blocks:
            self._restores[request.id] = _Restore(chain, plan)
        return plan.num_blocks * size

    def _note(self, request: Request, cause: str | None) -> None:
        if request.cached_tokens is None:
            request.miss = cause

    def begin(self, request: Request) -> None:
        """Start reading the proposed blocks."""
        restore = self._restores[request.id]
        restore.began_at = time.perf_counter()
        restore.ticket = self._tier.begin(restore.plan, restore.chain, request.tokens)

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Write the data that was read into the request's blocks.

        The writes are lazy: the next step evaluates them.
        """
        restore = self._restores[request.id]
        assert restore.ticket is not None
        restore.paced = restore.paced or not idle
        portion = PORTION_BLOCKS if idle else RESTORE_BLOCKS_PER_STEP
        payloads = self._tier.reader.take(restore.ticket, portion)
        if payloads:
            first = restore.plan.first + restore.num_written
            blocks = request.sequence.tables[self._group].blocks[first : first + len(payloads)]
            pages = [piece for payload in payloads for piece in payload]
            self._pool.write_blocks([block.id for block in blocks], pages)
            self.wrote = True
            restore.num_written += len(payloads)
        done = self._tier.reader.is_done(restore.ticket)
        num_blocks, state = len(payloads), None
        if self._tier.policy is not None:
            # blocks count only with the sidecar at their end
            state = self._install(request, restore) if done else None
            num_blocks = restore.num_written if state is not None else 0
            restore.num_written = num_blocks if done else restore.num_written
        if done:
            self._finish(request, restore)
        return RestoreProgress(num_blocks * self._cache.block_size, done, state)

    def _install(self, request: Request, restore: _Restore) -> KeptState | None:
        """Install the sidecar of a restore and return its state; None without a sidecar."""
        assert restore.ticket is not None
        assert self._sidecars is not None
        found = self._tier.reader.sidecar(restore.ticket)
        if found is None or found[0] != restore.num_written:
            suppressed = self._tier.reader.has_sidecar(restore.ticket)
            self._tier.counters.add_sidecar(restore_suppressed=int(suppressed))
            return None
        boundary = (restore.plan.first + found[0]) * self._cache.block_size
        state = self._sidecars.install(request.sequence, boundary, found[1])
        self.wrote = True
        self._tier.counters.add_sidecar(installed=1)
        self._trace.event("cold_sidecar_install", boundary=boundary)
        return state

    def _finish(self, request: Request, restore: _Restore) -> None:
        assert restore.ticket is not None
        del self._restores[request.id]
        elapsed_us = (time.perf_counter() - restore.began_at) * 1e6
        missing = restore.plan.num_blocks - restore.num_written
        if missing:
            self._note(request, self._tier.reader.cause(restore.ticket))
            self._tier.counters.add(misses=1)
        self._tier.reader.forget(restore.ticket)
        num_bytes = restore.num_written * self._tier.cost.block_bytes
        num_bytes += self._tier.state_bytes(
            restore.plan.first + restore.num_written if restore.num_written else 0
        )
        if num_bytes and not restore.paced:
            # a paced restore measures the steps of other requests, not the disk
            self._tier.cost.restore.record(num_bytes, elapsed_us)
        self._tier.count_restored(restore.num_written)
        self._counters.ssd_restore_bytes += num_bytes
        self._counters.ssd_restore_wait_ms += elapsed_us / 1e3
        size = self._cache.block_size
        self._trace.event(
            "cold_restore_walk",
            request=request.id,
            hot_tokens=restore.plan.first * size,
            bound_tokens=restore.plan.end * size,
            restored_tokens=restore.num_written * size,
            elapsed_ms=round(elapsed_us / 1e3, 2),
        )

    def cancel(self, request: Request) -> None:
        """Cancel a restore; a request without a restore is ignored."""
        restore = self._restores.pop(request.id, None)
        if restore is not None and restore.ticket is not None:
            self._tier.reader.forget(restore.ticket)

    def wait(self, timeout_s: float) -> None:
        """Wait for data from the disk, for at most `timeout_s` seconds."""
        self._tier.reader.wait(timeout_s)
