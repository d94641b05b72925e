"""Prefixes that come back from disk, between the tier's bytes and the pools' arrays.

admission   propose -> begin     the scheduler has reserved the blocks
each step   advance              blocks that were read are written into the pools
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
"""Blocks of one portion while other requests run, whose step waits for it."""


def cold_chain(tier: ColdTier, prefix: PrefixChain) -> ColdChain | None:
    """Return the names of a sequence's objects; None before the model's fingerprint is known.

    Proposals of restores and captures both come here, so that the salt and the extra keys of
    a sequence enter every name.
    """
    return tier.chain(prefix.salt, prefix.extra_keys)


@attrs.define(eq=False)
class _Restore:
    """A request's restore, from the proposal on."""

    chain: ColdChain
    plan: RestorePlan
    began_at: float = 0.0
    ticket: Ticket | None = None
    num_written: int = 0
    paced: bool = False


class Restores:
    """The restores of a running engine. Owned by the engine thread.

    Attributes:
        wrote: The pools have writes that nobody has evaluated; the stepper takes it back.
    """

    def __init__(
        self,
        tier: ColdTier,
        lane: PagedLane,
        sidecars: Sidecars | None,
        counters: SchedulerCounters,
        trace: Trace,
    ) -> None:
        """Prepare for the restores of an engine.

        Args:
            tier: The cold tier.
            lane: Whose pools are written.
            sidecars: State that the model keeps beside its blocks; None if there is none.
            counters: Counts to add to.
            trace: Where events go.
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
        """Return how many tokens behind a hit can be restored."""
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
        """Have the proposed blocks read."""
        restore = self._restores[request.id]
        restore.began_at = time.perf_counter()
        restore.ticket = self._tier.begin(restore.plan, restore.chain, request.tokens)

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Write what has arrived into the request's blocks; lazily, as a step does."""
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
            # without the state at just their end the blocks are of no use
            state = self._install(request, restore) if done else None
            num_blocks = restore.num_written if state is not None else 0
            restore.num_written = num_blocks if done else restore.num_written
        if done:
            self._finish(request, restore)
        return RestoreProgress(num_blocks * self._cache.block_size, done, state)

    def _install(self, request: Request, restore: _Restore) -> KeptState | None:
        """Return the state that backs the blocks of a restore; None if there is none."""
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
            # beside other requests the time is that of their steps, not of the disk
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
        """Give up a restore."""
        restore = self._restores.pop(request.id, None)
        if restore is not None and restore.ticket is not None:
            self._tier.reader.forget(restore.ticket)

    def wait(self, timeout_s: float) -> None:
        """Wait for the disk, for at most `timeout_s`."""
        self._tier.reader.wait(timeout_s)
