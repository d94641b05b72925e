"""Who runs in the next step.

There are no phases: each step has one token budget, decode rows take one token each, and
what is left goes to prefill slices. Deciding (`plan`) and committing (`settle`) are two
calls, and the plan of step n+1 is made before step n is settled.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import attrs

from ..errors import CacheExhaustedError, ContextLengthExceededError
from ..ids import SequenceId
from ..log import get_logger
from ..settings import SchedulerSettings
from .attempt import Attempt
from .cache_port import CachePort
from .cold_port import ColdPort
from .plan import PlannedRow, StepPlan
from .preemption import choose_victim
from .queue import WaitingQueue
from .request import Request, RequestStatus
from .telemetry import SchedulerCounters, SchedulerStats


class Scheduler:
    """Continuous batching over one cache. Pure Python; owned by the engine thread.

    Attributes:
        counters: Counted since load; the engine adds what only it can see.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        cache: CachePort,
        *,
        max_context: int,
        block_size: int,
        row_exact: bool = False,
        counters: SchedulerCounters | None = None,
        cold: ColdPort | None = None,
    ) -> None:
        """Make an empty scheduler.

        Args:
            settings: Widths and budgets.
            cache: The cache of all sequences.
            max_context: Positions that the model can address.
            block_size: Tokens of a block.
            row_exact: Prefill is cut at pinned breaks only, never by the budget, so that a
                request's slices do not depend on its neighbours.
            counters: Counts to add to, when others add to them too.
            cold: Prefixes on disk; None without a cold tier.
        """
        self.counters = counters or SchedulerCounters()
        self._cold = cold
        # admitted, their blocks charged, and not yet running: what they hold is being read
        self._restoring: list[Request] = []
        self._settings = settings
        self._cache = cache
        self._max_context = max_context
        self._block_size = block_size
        self._row_exact = row_exact
        self._running: list[Request] = []
        self._waiting = WaitingQueue()
        self._next_sequence = 0
        # request id -> the cache's publication count when it was found waiting for a prefix
        self._deferred: dict[int, int] = {}
        self._log = get_logger("scheduler")

    # -- arrivals and departures ----------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request into the queue and clamp its `max_tokens` to what fits.

        The last sampled token needs no place in the cache, hence the `+ 1`.

        Raises:
            ContextLengthExceededError: The prompt alone does not fit.
        """
        bound, what = min(
            (self._max_context, "the model's context"),
            (self._cache.max_tokens, f"the cache ({self._cache.max_usable_blocks} blocks)"),
        )
        if request.num_prompt_tokens > bound:
            raise ContextLengthExceededError(request.num_prompt_tokens, bound, what)
        request.max_tokens = min(request.max_tokens, bound - request.num_prompt_tokens + 1)
        self._waiting.append(request)

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it is, and give back all that it holds."""
        request.move(RequestStatus.FINISHED)
        self._waiting.remove(request)
        self._deferred.pop(request.id, None)
        if request in self._running:
            self._running.remove(request)
        self._stop_restoring(request)
        self._release(request)
        self.counters.completed += 1

    def _release(self, request: Request) -> None:
        if request.sequence is not None:
            self._cache.release(request.sequence)
            request.sequence = None

    @property
    def requests(self) -> Sequence[Request]:
        """Every request that is not finished, running ones first."""
        return [*self._running, *self._restoring, *self._waiting]

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to run and nothing to wait for."""
        return not self._running and not self._restoring and not len(self._waiting)

    @property
    def only_restores(self) -> bool:
        """Whether nothing can be computed before the disk has answered."""
        return bool(self._restoring) and not self._running

    # -- deciding --------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Return the rows of the next step and reserve their positions."""
        attempt = Attempt(self._settings.max_batched_tokens)
        for request in list(self._restoring):
            self._advance_restore(request)
        # copies: a preemption shortens the list while it is walked
        for request in list(self._running):
            if request.wants_decode:
                self._plan_decode(request, attempt)
        for request in list(self._running):
            if request not in attempt and request.wants_prefill:
                self._plan_prefill(request, attempt)
        if not attempt.preempted:
            self._admit(attempt)
        plan = attempt.result()
        if plan.rows:
            self.counters.count_step(plan)
        return plan

    def _plan_decode(self, request: Request, attempt: Attempt) -> None:
        if request.may_sample and attempt.budget:
            self._plan_row(request, 1, attempt)

    def _plan_prefill(self, request: Request, attempt: Attempt) -> None:
        length = self._slice_length(request, attempt)
        if length > 0:
            self._plan_row(request, length, attempt)

    def _slice_length(self, request: Request, attempt: Attempt) -> int:
        """Return the tokens up to the next pinned break, as far as the budget goes."""
        chunk, cursor = self._settings.prefill_chunk_size, request.sequence.cursor
        to_break = chunk - (cursor - request.grid_origin) % chunk
        to_break = min([to_break, *(rung - cursor for rung in request.rungs if rung > cursor)])
        length = min(request.num_uncomputed, to_break, self._settings.long_prefill_tokens)
        if not self._row_exact:
            return min(length, attempt.budget)
        # uncut: it runs when it fits, or as the only slice of its step
        return length if length <= attempt.budget or not attempt.num_prefill_rows else 0

    def _plan_row(self, request: Request, length: int, attempt: Attempt) -> None:
        if not self._reserve(request, length, attempt):
            return
        position = request.sequence.cursor - length
        on_device = position == len(request.tokens)
        samples = request.sequence.cursor == len(request.tokens) + request.num_in_flight
        attempt.add(PlannedRow(request, request.sequence, position, length, samples, on_device))

    def _reserve(self, request: Request, length: int, attempt: Attempt) -> bool:
        """Reserve, at the cost of at most one victim a step; False if there is no room."""
        while True:
            try:
                self._cache.reserve(request.sequence, length)
            except CacheExhaustedError:
                if attempt.preempted or not self._make_room(request, attempt):
                    self.counters.rows_alloc_evicted += 1
                    return False
            else:
                return True

    def _make_room(self, request: Request, attempt: Attempt) -> bool:
        """Preempt one request; True if `request` may try again."""
        others = [*self._running, *self._restoring]
        if len(others) == 1:
            attempt.starved.append(request)
            return False
        victim = choose_victim(sorted(others, key=lambda t: t.id))
        self._preempt(victim)
        attempt.drop(victim)
        attempt.preempted.append(victim)
        return victim is not request

    def _preempt(self, request: Request) -> None:
        """Take a request's blocks; what is full and committed stays to be hit again."""
        self._cache.publish(request.sequence)
        request.spilled = request.status is RequestStatus.RUNNING and self._spill(request)
        self._stop_restoring(request)
        self._release(request)
        if request in self._running:
            self._running.remove(request)
        request.move(RequestStatus.PREEMPTED)
        request.preemptions += 1
        # a whole block of progress, or the victim of now would be the victim of the next step
        request.protected_until = len(request.tokens) + self._block_size
        self._waiting.push_front(request)
        self.counters.preemptions += 1
        self.counters.preemptions_ssd += request.spilled
        self.counters.preemptions_recompute += not request.spilled
        mode = "spill" if request.spilled else "recompute"
        self._log.info(
            "scheduler.request.preempted",
            request=request.id,
            tokens=len(request.tokens),
            mode=mode,
        )

    def _spill(self, request: Request) -> bool:
        return self._cold is not None and self._cold.spill(request)

    # -- admission -------------------------------------------------------------------------

    def _admit(self, attempt: Attempt) -> None:
        """Admit in arrival order; the first request that lacks blocks holds up the others.

        A request whose prefix a running one is about to publish steps aside: admitted, it would
        compute the same blocks a second time.
        """
        for request in self._waiting:
            admitted = len(self._running) + len(self._restoring)
            if admitted >= self._settings.max_num_seqs or attempt.budget < 1:
                return
            if request.num_in_flight:
                return  # preempted in this very step: its last token has not been read
            if self._deferred.get(request.id) == self._cache.num_publications:
                continue
            if not self._try_admit(request, attempt):
                return

    def _opened(self, request: Request) -> Request:
        """Return a request that has a sequence."""
        if request.sequence is None:
            request.sequence = self._cache.open(
                SequenceId(self._next_sequence),
                request.tokens,
                salt=request.salt,
                owner=request.owner,
            )
            self._next_sequence += 1
        return request

    def _try_admit(self, request: Request, attempt: Attempt) -> bool:
        """Admit, or put aside for a prefix; False if there are not enough blocks."""
        self._opened(request)
        hit = self._cache.match_prefix(request.sequence)
        if hit.awaited > hit.length:
            self._deferred[request.id] = self._cache.num_publications
            self.counters.admission_deferred_prefix += 1
            return True
        room = self._needed_tokens(request, hit.length)
        if not self._cache.admits(hit, room, self._reservations(), self._watermark()):
            self.counters.admission_deferred_blocks += 1
            return False
        if request.cached_tokens is None:
            request.held_tokens = hit.length + hit.unbacked
        extension = self._cold.propose(request, hit.length) if self._cold else 0
        self._cache.attach(request.sequence, hit)
        self._waiting.remove(request)
        self._deferred.pop(request.id, None)
        self.counters.admitted += 1
        if extension and self._begin_restore(request, extension):
            return True
        self._start(request)
        self._plan_admitted(request, attempt)
        return True

    def _start(self, request: Request) -> None:
        """Let a request run from what its sequence holds."""
        request.move(RequestStatus.RUNNING)
        request.grid_origin = request.sequence.frontier
        request.rungs = self._rungs(request)
        self._cache.promise(request.sequence, request.rungs)
        if request.cached_tokens is None:
            request.cached_tokens = request.sequence.frontier
        bisect.insort(self._running, request, key=lambda t: t.id)

    def _rungs(self, request: Request) -> list[int]:
        """Return where a prefill stops for its state, or for those who wait for one."""
        waiting = itertools.islice(self._waiting, self._settings.max_num_seqs)
        for_others = {
            self._cache.shared_prefix(request.sequence, self._opened(other).sequence)
            for other in waiting
            if other.salt == request.salt
            and not other.num_in_flight  # else it is not all known
        }
        own = self._cache.rungs(request.sequence)
        frontier = request.sequence.frontier
        return sorted({*own, *(rung for rung in for_others if rung > frontier)})

    # -- restores --------------------------------------------------------------------------

    def _begin_restore(self, request: Request, num_tokens: int) -> bool:
        """Reserve what will be restored and leave the rest to the disk; False without room."""
        assert self._cold is not None
        try:
            self._cache.reserve_restore(request.sequence, num_tokens)
        except CacheExhaustedError:
            self._cold.cancel(request)
            return False
        request.move(RequestStatus.WAITING_FOR_SSD)
        self._restoring.append(request)
        self._cold.begin(request)
        self.counters.ssd_restores += 1
        return True

    def _advance_restore(self, request: Request) -> None:
        """Commit what has arrived; when nothing more will, compute the rest."""
        assert self._cold is not None
        progress = self._cold.advance(request, idle=not self._running)
        self._cache.commit(request.sequence, progress.num_tokens)
        self._cache.publish(request.sequence)
        if progress.state is not None:
            self._cache.reach(request.sequence, progress.state, rung=True)
        if request.cached_tokens is None:
            request.restored_tokens += progress.num_tokens
        if progress.done:
            self._cache.rollback(
                request.sequence, request.sequence.cursor - request.sequence.frontier
            )
            self._restoring.remove(request)
            self._start(request)

    def requeue_restoring(self) -> None:
        """Send every request that waits for the disk back: what was written for it is lost."""
        for request in list(self._restoring):
            self._stop_restoring(request)
            self._release(request)
            request.move(RequestStatus.PREEMPTED)
            self._waiting.push_front(request)

    def _stop_restoring(self, request: Request) -> None:
        if request in self._restoring:
            assert self._cold is not None
            self._restoring.remove(request)
            self._cold.cancel(request)
            if request.cached_tokens is None:
                request.restored_tokens = 0  # what is left of them will be found in memory

    def _plan_admitted(self, request: Request, attempt: Attempt) -> None:
        (self._plan_decode if request.wants_decode else self._plan_prefill)(request, attempt)

    def _needed_tokens(self, request: Request, hit_length: int) -> int:
        """Return the tokens that a request must have room for before it may start."""
        end = len(request.tokens)
        if self._settings.reserve_full_prompt:
            return end
        return min(end, hit_length + self._settings.max_batched_tokens)

    def _reservations(self) -> list[tuple[Any, int]]:
        """Return the sequences that may still take blocks, and their known tokens."""
        if not self._settings.reserve_full_prompt:
            return []
        return [(t.sequence, len(t.tokens)) for t in (*self._running, *self._restoring)]

    def _watermark(self) -> float:
        """Return the share kept free while others run; nothing is kept from a lone request."""
        alone = not self._running and not self._restoring
        return 0.0 if alone else self._settings.watermark_fraction

    # -- committing ------------------------------------------------------------------------

    def mark_in_flight(self, plan: StepPlan) -> None:
        """Note that the plan's sampled tokens are on their way."""
        for row in plan.rows:
            if row.samples:
                row.request.num_in_flight += 1

    def settle(self, row: PlannedRow, token: int | None) -> bool:
        """Commit a computed row and take note of its sampled token.

        Args:
            row: A row of the oldest plan that is not settled.
            token: The sampled token, None if the row samples nothing.

        Returns:
            Whether the token counts: False for a request that has finished meanwhile.
        """
        request = row.request
        if request.status is RequestStatus.FINISHED:
            return False
        if request.sequence is row.sequence:
            self._cache.commit(row.sequence, row.length)
            self._cache.publish(row.sequence)
        if token is None:
            return False
        request.num_in_flight -= 1
        request.tokens.append(token)
        if request.sequence is row.sequence:
            self._cache.record(row.sequence, [token])
        return True

    # -- looking ---------------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        """Return a snapshot."""
        counters = attrs.asdict(self.counters, recurse=False)
        counters["decode_batch_occupancy_hist"] = dict(
            self.counters.decode_batch_occupancy_hist
        )
        return SchedulerStats(
            **counters,
            running=len(self._running),
            ssd_restore_waiting=len(self._restoring),
            waiting=len(self._waiting),
            block_capacity=self._cache.max_usable_blocks,
            block_available=self._cache.num_available,
            block_watermark=int(self._watermark() * self._cache.max_usable_blocks),
            reserved_blocks=self._cache.num_reserved(self._reservations()),
        )
