"""Between the cold tier, which knows bytes, and the lane, which owns arrays.

admission  propose -> begin      the scheduler has reserved the blocks
each step  advance               what was read is written into the pools
request's end remember -> work      its blocks are read and handed to the writer
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from ..coldtier.objects.keys import ColdChain
from ..coldtier.stats import ColdCacheStats, ColdSidecarStats
from ..coldtier.tier import ColdTier
from ..coldtier.transfer.capture import Capture, Pages, StopReason
from ..coldtier.transfer.reader import PORTION_BLOCKS, Ticket
from ..coldtier.transfer.walk import RestorePlan
from ..kvcache.block_identity import PrefixChain
from ..kvcache.coordinator import Coordinator
from ..kvcache.state_keeper import KeptState
from ..log import get_logger
from ..pools.layer_pool import LayerPool
from ..scheduler.cold_port import RestoreProgress
from ..scheduler.request import Request
from ..scheduler.telemetry import SchedulerCounters
from ..telemetry.trace import Trace
from .identification import Identification
from .lanes import PagedLane
from .sidecars import Offer, sidecars_of

MAX_CAPTURES = 64
"""Requests whose blocks may wait to be written; beyond, the oldest is given up."""

RESTORE_BLOCKS_PER_STEP = 3
CAPTURE_BLOCKS_PER_STEP = 2
"""Blocks of one portion while other requests run, whose step waits for it."""

PACE = 12
"""While other requests run, a portion of a capture is followed by a pause of so many times its
length: they lose at most a twelfth of their speed."""

MAX_STALL_S = 10.0
"""After so long without a place in the writer's queue a request's walk is given up."""

POLL_S = 0.0005
IDENTITY_POLL_S = 0.02


@attrs.define(eq=False)
class _Restore:
    """A request's restore, from the proposal on."""

    chain: ColdChain
    plan: RestorePlan
    began_at: float = 0.0
    ticket: Ticket | None = None
    num_written: int = 0
    paced: bool = False


@attrs.define(eq=False)
class _Ended:
    """A request that has ended and whose blocks are to be written."""

    prefix: PrefixChain
    num_blocks: int
    tokens: list[int]
    done: Callable[[], None]
    capture: Capture | None = None
    moved_at: float = 0.0
    states: list[Offer] = attrs.field(factory=list)
    offered: bool = False


class _Blocks:
    """Reads a chain's published blocks; a `coldtier.transfer.capture.BlockSource`."""

    def __init__(self, cache: Coordinator, pool: LayerPool, prefix: PrefixChain) -> None:
        self._cache = cache
        self._pool = pool
        self._prefix = prefix

    def read(self, first: int, count: int) -> list[Pages]:
        """Return the bytes of blocks `[first, first + count)`, or fewer."""
        found = self._cache.find_blocks(self._prefix, first, count)
        return self._pool.read_blocks(found) if found else []


class EngineCold:
    """The cold tier of a running engine; a `scheduler.cold_port.ColdPort`.

    Owned by the engine thread.

    Attributes:
        tier: The tier.
        wrote: The pools have writes that nobody has evaluated; the loop takes it back.
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
        self.tier = tier
        self.wrote = False
        self._cache = lane.cache
        self._group = lane.layout.primary
        self._pool = lane.pools[self._group]
        self._sidecars = sidecars_of(lane, tier.policy)
        self._counters = counters
        self._trace = trace
        self._may_spill = may_spill
        self._identity = identity
        self._drain_timeout_s = drain_timeout_s
        self._restores: dict[Any, _Restore] = {}
        self._ended: deque[_Ended] = deque()
        self._paused_until = 0.0
        self._log = get_logger("coldtier")

    # -- restore ---------------------------------------------------------------------------

    def propose(self, request: Request, hit_length: int) -> int:
        """Return how many tokens behind a hit can be restored."""
        size = self._cache.block_size
        first, limit = hit_length // size, (len(request.tokens) - 1) // size
        self._note(request, None)
        if first >= limit:
            return 0
        chain = self.tier.chain(request.salt)
        if chain is None:
            self._note(request, "fingerprint")
            return 0
        plan = self.tier.plan(chain, request.tokens, first, limit, request.salt)
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
        restore.ticket = self.tier.begin(restore.plan, restore.chain, request.tokens)

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Write what has arrived into the request's blocks; lazily, as a step does."""
        restore = self._restores[request.id]
        assert restore.ticket is not None
        restore.paced = restore.paced or not idle
        portion = PORTION_BLOCKS if idle else RESTORE_BLOCKS_PER_STEP
        payloads = self.tier.reader.take(restore.ticket, portion)
        if payloads:
            first = restore.plan.first + restore.num_written
            blocks = request.sequence.tables[self._group].blocks[first : first + len(payloads)]
            pages = [piece for payload in payloads for piece in payload]
            self._pool.write_blocks([block.id for block in blocks], pages)
            self.wrote = True
            restore.num_written += len(payloads)
        done = self.tier.reader.is_done(restore.ticket)
        num_blocks, state = len(payloads), None
        if self.tier.policy is not None:
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
        found = self.tier.reader.sidecar(restore.ticket)
        if found is None or found[0] != restore.num_written:
            suppressed = self.tier.reader.has_sidecar(restore.ticket)
            self.tier.counters.add_sidecar(restore_suppressed=int(suppressed))
            return None
        boundary = (restore.plan.first + found[0]) * self._cache.block_size
        state = self._sidecars.install(request.sequence, boundary, found[1])
        self.wrote = True
        self.tier.counters.add_sidecar(installed=1)
        self._trace.event("cold_sidecar_install", boundary=boundary)
        return state

    def _finish(self, request: Request, restore: _Restore) -> None:
        assert restore.ticket is not None
        del self._restores[request.id]
        elapsed_us = (time.perf_counter() - restore.began_at) * 1e6
        missing = restore.plan.num_blocks - restore.num_written
        if missing:
            self._note(request, self.tier.reader.cause(restore.ticket))
            self.tier.counters.add(misses=1)
        self.tier.reader.forget(restore.ticket)
        num_bytes = restore.num_written * self.tier.cost.block_bytes
        num_bytes += self.tier.state_bytes(
            restore.plan.first + restore.num_written if restore.num_written else 0
        )
        if num_bytes and not restore.paced:
            # beside other requests the time is that of their steps, not of the disk
            self.tier.cost.restore.record(num_bytes, elapsed_us)
        self.tier.count_restored(restore.num_written)
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
            self.tier.reader.forget(restore.ticket)

    def wait(self, timeout_s: float) -> None:
        """Wait for the disk, for at most `timeout_s`."""
        self.tier.reader.wait(timeout_s)

    # -- capture ---------------------------------------------------------------------------

    def remember(self, request: Request, done: Callable[[], None]) -> None:
        """Note that a request has ended; `work` will write its blocks.

        Args:
            request: The request, its sequence not released yet.
            done: Called when that has come to an end.
        """
        sequence = request.sequence
        if sequence is None or not sequence.num_published:
            done()
            return
        self._ended.append(
            _Ended(sequence.chain, sequence.num_published, sequence.tokens, done)
        )
        while len(self._ended) > MAX_CAPTURES:
            self._ended.popleft().done()

    @property
    def has_work(self) -> bool:
        """Whether blocks wait to be written and can be."""
        return bool(self._ended) and self.tier.fingerprint is not None

    @property
    def patience_s(self) -> float | None:
        """How long the engine may sleep before `work` is worth a call; None for ever."""
        if not self._ended or not (self.has_work or self._identity.is_pending):
            return None
        return POLL_S if self.has_work else IDENTITY_POLL_S

    def work(self, *, idle: bool) -> None:
        """Write on for the oldest request that has ended; never waits.

        Args:
            idle: Nothing else runs, so that there is nobody to hold up.
        """
        now = time.perf_counter()
        if not self.has_work or (not idle and now < self._paused_until):
            return
        ended = self._ended[0]
        if ended.capture is None:
            ended.capture = self._capture(ended.prefix, ended.tokens, ended.num_blocks)
            ended.moved_at = now
        if ended.capture.stop is None:
            self._advance_capture(ended, ended.capture, idle=idle)
        self._paused_until = time.perf_counter() + PACE * (time.perf_counter() - now)
        if ended.capture.stop is not None and self._offer_states(ended, ended.capture):
            self._ended.popleft()
            ended.done()

    def _advance_capture(self, ended: _Ended, capture: Capture, *, idle: bool) -> None:
        began, before = time.perf_counter(), capture.reach
        self.tier.advance(capture, len(capture.names) if idle else CAPTURE_BLOCKS_PER_STEP)
        now = time.perf_counter()
        if not idle:
            capture.spent_s += now - began
        if capture.reach != before:
            ended.moved_at = now
        elif capture.stop is None and now - ended.moved_at > MAX_STALL_S:
            capture.spent_s = math.inf
            self.tier.advance(capture, 0)
        if capture.stop is not None:
            self._report(capture)
            ended.states = self._states_within(ended, capture)

    def _capture(self, prefix: PrefixChain, tokens: list[int], num_blocks: int) -> Capture:
        chain = self.tier.chain(prefix.salt, prefix.extra_keys)
        assert chain is not None
        source = _Blocks(self._cache, self._pool, prefix)
        return self.tier.capture(chain, tokens, num_blocks, source)

    def _report(self, capture: Capture) -> None:
        self._trace.event(
            "cold_capture_walk",
            blocks=len(capture.names),
            written=capture.written,
            already=capture.already,
            stop=capture.stop.value if capture.stop else "",
            elapsed_ms=round(capture.spent_s * 1e3, 2),
        )
        if capture.stop is StopReason.DEADLINE:
            self._log.warning(
                "coldtier.capture.late", written=capture.written, blocks=len(capture.names)
            )

    def _states_within(self, ended: _Ended, capture: Capture) -> list[Offer]:
        """Return the states that a request writes: at least one, if only to be counted."""
        if self._sidecars is None:
            return []

        def is_stored(num_blocks: int) -> bool:
            return self.tier.has_state(capture.chain, ended.tokens, num_blocks)

        return self._sidecars.offers(ended.prefix, capture.reach, is_stored) or [_nothing]

    def _offer_states(self, ended: _Ended, capture: Capture) -> bool:
        """Hand the next state to the writer if it has a place; return whether none is left."""
        if ended.states and (self.tier.free_slots or self._is_late(ended)):
            state = ended.states.pop(0)()
            outcome = self.tier.offer_state(
                capture.chain, ended.tokens, capture, state, first=not ended.offered
            )
            ended.offered, ended.moved_at = True, time.perf_counter()
            boundary = 0 if state is None else state.num_blocks * self._cache.block_size
            self._trace.event("cold_sidecar_capture", boundary=boundary, outcome=outcome)
        return not ended.states

    def _is_late(self, ended: _Ended) -> bool:
        return time.perf_counter() - ended.moved_at > MAX_STALL_S

    def spill(self, request: Request) -> bool:
        """Write a running request's published blocks at once, if that beats computing again."""
        sequence = request.sequence
        num_blocks, size = sequence.num_published, self._cache.block_size
        pays = self.tier.cost.spill_pays(num_blocks, num_blocks * size)
        if not (self._may_spill and self.tier.fingerprint is not None and pays):
            return False
        capture = self._capture(sequence.chain, list(sequence.tokens), num_blocks)
        began = time.perf_counter()
        while capture.stop is None:
            self.tier.advance(capture, num_blocks)
            if capture.stop is None:
                time.sleep(POLL_S)  # the writer has no place: it needs the processor
            # here the others do wait, so all of it counts
            capture.spent_s = time.perf_counter() - began
        self._report(capture)
        return capture.stop is StopReason.COMPLETE

    # -- the rest --------------------------------------------------------------------------

    def record_step(self, num_tokens: int, seconds: float) -> None:
        """Take note of what a prefill took."""
        self.tier.cost.prefill.record(num_tokens, seconds * 1e6)

    def stats(self) -> tuple[ColdCacheStats, ColdSidecarStats]:
        """Return what was counted."""
        return self.tier.stats()

    @property
    def identification(self) -> Identification:
        """The thread that finds out which model it is."""
        return self._identity

    def flush(self, deadline: float) -> bool:
        """Write what ended requests left, within their budgets, and wait for the disk.

        Args:
            deadline: When to give up, on the clock of `time.monotonic`.

        Returns:
            Whether everything that was handed to the writer landed.
        """
        while (patience := self.patience_s) is not None and time.monotonic() < deadline:
            self.work(idle=True)
            time.sleep(patience)
        return self.tier.drain(max(0.0, deadline - time.monotonic()))

    def close(self) -> bool:
        """Flush, and end the threads; return whether everything landed."""
        deadline = time.monotonic() + self._drain_timeout_s
        self.flush(deadline)
        while self._ended:
            self._ended.popleft().done()
        self._identity.close()
        return self.tier.close(max(0.0, deadline - time.monotonic()))


def _nothing() -> None:
    """Offer no state."""


def cold_stats(cold: EngineCold | None) -> tuple[ColdCacheStats, ColdSidecarStats]:
    """Return the counts of a cold tier; zeros, and not enabled, without one."""
    return (ColdCacheStats(), ColdSidecarStats()) if cold is None else cold.stats()
