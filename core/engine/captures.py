"""Captures: writing the blocks of ended requests to disk.

end of a request   remember   queues the chain of the request
each step          work       reads blocks from the pools and hands them to the writer thread
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
"""Most requests with queued captures. Beyond the limit, the oldest capture is dropped."""

CAPTURE_BLOCKS_PER_STEP = 2
"""Blocks per portion while other requests run. The next step waits for the portion."""

PACE = 12
"""Pause after a portion while other requests run, as a multiple of the portion's duration.
Captures slow other requests down by at most a twelfth."""

MAX_STALL_S = 10.0
"""Seconds without a free slot in the writer's queue after which a capture is dropped."""

POLL_S = 0.0005
IDENTITY_POLL_S = 0.02


@attrs.define(eq=False)
class _Ended:
    """An ended request whose blocks are queued for capture."""

    prefix: PrefixChain
    num_blocks: int
    tokens: list[int]
    done: Callable[[], None]
    capture: Capture | None = None
    moved_at: float = 0.0
    states: list[Offer] = attrs.field(factory=list)
    offered: bool = False


class _Blocks:
    """Reads a chain's published blocks. Implements `coldtier.transfer.capture.BlockSource`."""

    def __init__(self, cache: Coordinator, pool: LayerPool, prefix: PrefixChain) -> None:
        self._cache = cache
        self._pool = pool
        self._prefix = prefix

    def read(self, first: int, count: int) -> list[Pages]:
        """Return the bytes of blocks `[first, first + count)`, up to the first unpublished."""
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
        """Make the captures of an engine.

        Args:
            tier: The cold tier.
            lane: The lane whose pools are read.
            sidecars: The model's sidecars; None if blocks hold the whole cache.
            trace: The destination of events.
            may_spill: Whether running requests may be written before preemption.
            identity: The identification of the model. Captures wait for the fingerprint.
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
        """Queue the capture of an ended request for `work`.

        Args:
            request: The request. Its sequence is not released yet.
            done: Called when the capture is complete or dropped.
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
        """Whether a capture is queued and the model's fingerprint is known."""
        return bool(self._ended) and self._tier.fingerprint is not None

    @property
    def patience_s(self) -> float | None:
        """Seconds that an idle engine may sleep before the next `work`; None: no limit."""
        if not self._ended or not (self.has_work or self._identity.is_pending):
            return None
        return POLL_S if self.has_work else IDENTITY_POLL_S

    def work(self, *, idle: bool) -> None:
        """Continue the oldest capture by one portion; never waits.

        Args:
            idle: Whether no request runs. Idle captures have large portions and no pauses.
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
        """Return the sidecars that a request offers; an empty offer is counted too."""
        if self._sidecars is None:
            return []

        def is_stored(num_blocks: int) -> bool:
            return self._tier.has_state(capture.chain, ended.tokens, num_blocks)

        return self._sidecars.offers(ended.prefix, capture.reach, is_stored) or [_nothing]

    def _offer_states(self, ended: _Ended, capture: Capture) -> bool:
        """Offer the next sidecar if the writer has a free slot; return whether none is left."""
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
        """Write a running request's published blocks now, if a restore beats recomputing.

        Returns:
            Whether every published block is on disk or in the writer's queue.
        """
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
                time.sleep(POLL_S)  # the writer's queue is full: let the writer thread run
            # other requests wait during a spill, so the whole duration counts
            capture.spent_s = time.perf_counter() - began
        self._report(capture)
        return capture.stop is StopReason.COMPLETE

    def flush(self, deadline: float) -> None:
        """Finish queued captures, within their budgets.

        Args:
            deadline: End of the flush on the clock of `time.monotonic`.
        """
        while (patience := self.patience_s) is not None and time.monotonic() < deadline:
            self.work(idle=True)
            time.sleep(patience)

    def give_up(self) -> None:
        """Drop all queued captures and call their `done`."""
        while self._ended:
            self._ended.popleft().done()


def _nothing() -> None:
    """Offer no sidecar."""
