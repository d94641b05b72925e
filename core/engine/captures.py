"""Blocks of requests that have ended, on their way to disk.

request's end   remember   its chain is noted
each step       work       blocks are read from the pools and handed to the writer thread
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import attrs

from ..coldtier.tier import ColdTier
from ..coldtier.transfer.capture import Capture, Pages, StopReason
from ..kvcache.block_identity import PrefixChain
from ..kvcache.coordinator import Coordinator
from ..log import get_logger
from ..pools.layer_pool import LayerPool
from ..scheduler.request import Request
from ..telemetry.trace import Trace
from .identification import Identification
from .lanes import PagedLane
from .restores import cold_chain
from .sidecars import Offer, Sidecars

MAX_CAPTURES = 64
"""Requests whose blocks may wait to be written; beyond, the oldest is given up."""

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


class Captures:
    """The captures of a running engine. Owned by the engine thread."""

    def __init__(
        self,
        tier: ColdTier,
        lane: PagedLane,
        sidecars: Sidecars | None,
        trace: Trace,
        *,
        may_spill: bool,
        identity: Identification,
    ) -> None:
        """Prepare for the captures of an engine.

        Args:
            tier: The cold tier.
            lane: Whose pools are read.
            sidecars: State that the model keeps beside its blocks; None if there is none.
            trace: Where events go.
            may_spill: Whether running requests may be written before their blocks are taken.
            identity: Finds out which model it is; nothing is written before.
        """
        self._tier = tier
        self._cache = lane.cache
        self._pool = lane.pools[lane.layout.primary]
        self._sidecars = sidecars
        self._trace = trace
        self._may_spill = may_spill
        self._identity = identity
        self._ended: deque[_Ended] = deque()
        self._paused_until = 0.0
        self._log = get_logger("coldtier")

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
        return bool(self._ended) and self._tier.fingerprint is not None

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
        self._tier.advance(capture, len(capture.names) if idle else CAPTURE_BLOCKS_PER_STEP)
        now = time.perf_counter()
        if not idle:
            capture.spent_s += now - began
        if capture.reach != before:
            ended.moved_at = now
        elif capture.stop is None and now - ended.moved_at > MAX_STALL_S:
            capture.spent_s = math.inf
            self._tier.advance(capture, 0)
        if capture.stop is not None:
            self._report(capture)
            ended.states = self._states_within(ended, capture)

    def _capture(self, prefix: PrefixChain, tokens: list[int], num_blocks: int) -> Capture:
        chain = cold_chain(self._tier, prefix)
        assert chain is not None
        source = _Blocks(self._cache, self._pool, prefix)
        return self._tier.capture(chain, tokens, num_blocks, source)

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
            return self._tier.has_state(capture.chain, ended.tokens, num_blocks)

        return self._sidecars.offers(ended.prefix, capture.reach, is_stored) or [_nothing]

    def _offer_states(self, ended: _Ended, capture: Capture) -> bool:
        """Hand the next state to the writer if it has a place; return whether none is left."""
        if ended.states and (self._tier.free_slots or self._is_late(ended)):
            state = ended.states.pop(0)()
            outcome = self._tier.offer_state(
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
        pays = self._tier.cost.spill_pays(num_blocks, num_blocks * size)
        if not (self._may_spill and self._tier.fingerprint is not None and pays):
            return False
        capture = self._capture(sequence.chain, list(sequence.tokens), num_blocks)
        began = time.perf_counter()
        while capture.stop is None:
            self._tier.advance(capture, num_blocks)
            if capture.stop is None:
                time.sleep(POLL_S)  # the writer has no place: it needs the processor
            # here the others do wait, so all of it counts
            capture.spent_s = time.perf_counter() - began
        self._report(capture)
        return capture.stop is StopReason.COMPLETE

    def flush(self, deadline: float) -> None:
        """Write what ended requests left, within their budgets.

        Args:
            deadline: When to give up, on the clock of `time.monotonic`.
        """
        while (patience := self.patience_s) is not None and time.monotonic() < deadline:
            self.work(idle=True)
            time.sleep(patience)

    def give_up(self) -> None:
        """Report the end of every request whose blocks still wait to be written."""
        while self._ended:
            self._ended.popleft().done()


def _nothing() -> None:
    """Offer no state."""
