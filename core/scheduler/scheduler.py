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
from .telemetry import SchedulerCounters, SchedulerStats
from .turn import Turn, TurnStatus


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
                turn's slices do not depend on its neighbours.
            counters: Counts to add to, when others add to them too.
            cold: Prefixes on disk; None without a cold tier.
        """
        self.counters = counters or SchedulerCounters()
        self._cold = cold
        # admitted, their blocks charged, and not yet running: what they hold is being read
        self._restoring: list[Turn] = []
        self._settings = settings
        self._cache = cache
        self._max_context = max_context
        self._block_size = block_size
        self._row_exact = row_exact
        self._running: list[Turn] = []
        self._waiting = WaitingQueue()
        self._next_sequence = 0
        # turn id -> the cache's publication count when it was found waiting for a prefix
        self._deferred: dict[int, int] = {}
        self._log = get_logger("scheduler")

    # -- arrivals and departures ----------------------------------------------------------

    def submit(self, turn: Turn) -> None:
        """Take a turn into the queue and clamp its `max_tokens` to what fits.

        The last sampled token needs no place in the cache, hence the `+ 1`.

        Raises:
            ContextLengthExceededError: The prompt alone does not fit.
        """
        bound, what = min(
            (self._max_context, "the model's context"),
            (self._cache.max_tokens, f"the cache ({self._cache.max_usable_blocks} blocks)"),
        )
        if turn.num_prompt_tokens > bound:
            raise ContextLengthExceededError(turn.num_prompt_tokens, bound, what)
        turn.max_tokens = min(turn.max_tokens, bound - turn.num_prompt_tokens + 1)
        self._waiting.append(turn)

    def finish(self, turn: Turn) -> None:
        """Take a turn out, wherever it is, and give back all that it holds."""
        turn.move(TurnStatus.FINISHED)
        self._waiting.remove(turn)
        self._deferred.pop(turn.id, None)
        if turn in self._running:
            self._running.remove(turn)
        self._stop_restoring(turn)
        self._release(turn)
        self.counters.completed += 1

    def _release(self, turn: Turn) -> None:
        if turn.sequence is not None:
            self._cache.release(turn.sequence)
            turn.sequence = None

    @property
    def turns(self) -> Sequence[Turn]:
        """Every turn that is not finished, running ones first."""
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
        for turn in list(self._restoring):
            self._advance_restore(turn)
        # copies: a preemption shortens the list while it is walked
        for turn in list(self._running):
            if turn.wants_decode:
                self._plan_decode(turn, attempt)
        for turn in list(self._running):
            if turn not in attempt and turn.wants_prefill:
                self._plan_prefill(turn, attempt)
        if not attempt.preempted:
            self._admit(attempt)
        plan = attempt.result()
        if plan.rows:
            self.counters.count_step(plan)
        return plan

    def _plan_decode(self, turn: Turn, attempt: Attempt) -> None:
        if turn.may_sample and attempt.budget:
            self._plan_row(turn, 1, attempt)

    def _plan_prefill(self, turn: Turn, attempt: Attempt) -> None:
        length = self._slice_length(turn, attempt)
        if length > 0:
            self._plan_row(turn, length, attempt)

    def _slice_length(self, turn: Turn, attempt: Attempt) -> int:
        """Return the tokens up to the next pinned break, as far as the budget goes."""
        chunk, cursor = self._settings.prefill_chunk_size, turn.sequence.cursor
        to_break = chunk - (cursor - turn.grid_origin) % chunk
        to_break = min([to_break, *(rung - cursor for rung in turn.rungs if rung > cursor)])
        length = min(turn.num_uncomputed, to_break, self._settings.long_prefill_tokens)
        if not self._row_exact:
            return min(length, attempt.budget)
        # uncut: it runs when it fits, or as the only slice of its step
        return length if length <= attempt.budget or not attempt.num_prefill_rows else 0

    def _plan_row(self, turn: Turn, length: int, attempt: Attempt) -> None:
        if not self._reserve(turn, length, attempt):
            return
        position = turn.sequence.cursor - length
        on_device = position == len(turn.tokens)
        samples = turn.sequence.cursor == len(turn.tokens) + turn.num_in_flight
        attempt.add(PlannedRow(turn, turn.sequence, position, length, samples, on_device))

    def _reserve(self, turn: Turn, length: int, attempt: Attempt) -> bool:
        """Reserve, at the cost of at most one victim a step; False if there is no room."""
        while True:
            try:
                self._cache.reserve(turn.sequence, length)
            except CacheExhaustedError:
                if attempt.preempted or not self._make_room(turn, attempt):
                    self.counters.rows_alloc_evicted += 1
                    return False
            else:
                return True

    def _make_room(self, turn: Turn, attempt: Attempt) -> bool:
        """Preempt one turn; True if `turn` may try again."""
        others = [*self._running, *self._restoring]
        if len(others) == 1:
            attempt.starved.append(turn)
            return False
        victim = choose_victim(sorted(others, key=lambda t: t.id))
        self._preempt(victim)
        attempt.drop(victim)
        attempt.preempted.append(victim)
        return victim is not turn

    def _preempt(self, turn: Turn) -> None:
        """Take a turn's blocks; what is full and committed stays to be hit again."""
        self._cache.publish(turn.sequence)
        turn.spilled = turn.status is TurnStatus.RUNNING and self._spill(turn)
        self._stop_restoring(turn)
        self._release(turn)
        if turn in self._running:
            self._running.remove(turn)
        turn.move(TurnStatus.PREEMPTED)
        turn.preemptions += 1
        # a whole block of progress, or the victim of now would be the victim of the next step
        turn.protected_until = len(turn.tokens) + self._block_size
        self._waiting.push_front(turn)
        self.counters.preemptions += 1
        self.counters.preemptions_ssd += turn.spilled
        self.counters.preemptions_recompute += not turn.spilled
        mode = "spill" if turn.spilled else "recompute"
        self._log.info(
            "scheduler.turn.preempted", turn=turn.id, tokens=len(turn.tokens), mode=mode
        )

    def _spill(self, turn: Turn) -> bool:
        return self._cold is not None and self._cold.spill(turn)

    # -- admission -------------------------------------------------------------------------

    def _admit(self, attempt: Attempt) -> None:
        """Admit in arrival order; the first turn that lacks blocks holds up all behind it.

        A turn whose prefix a running turn is about to publish steps aside instead: it would
        compute the same blocks a second time.
        """
        for turn in self._waiting:
            admitted = len(self._running) + len(self._restoring)
            if admitted >= self._settings.max_num_seqs or attempt.budget < 1:
                return
            if turn.num_in_flight:
                return  # preempted in this very step: its last token has not been read
            if self._deferred.get(turn.id) == self._cache.num_publications:
                continue
            if not self._try_admit(turn, attempt):
                return

    def _opened(self, turn: Turn) -> Turn:
        """Return a turn that has a sequence."""
        if turn.sequence is None:
            turn.sequence = self._cache.open(
                SequenceId(self._next_sequence),
                turn.tokens,
                salt=turn.salt,
                owner=turn.owner,
            )
            self._next_sequence += 1
        return turn

    def _try_admit(self, turn: Turn, attempt: Attempt) -> bool:
        """Admit, or put aside for a prefix; False if there are not enough blocks."""
        self._opened(turn)
        hit = self._cache.match_prefix(turn.sequence)
        if hit.awaited > hit.length:
            self._deferred[turn.id] = self._cache.num_publications
            self.counters.admission_deferred_prefix += 1
            return True
        room = self._needed_tokens(turn, hit.length)
        if not self._cache.admits(hit, room, self._reservations(), self._watermark()):
            self.counters.admission_deferred_blocks += 1
            return False
        if turn.cached_tokens is None:
            turn.held_tokens = hit.length + hit.unbacked
        extension = self._cold.propose(turn, hit.length) if self._cold else 0
        self._cache.attach(turn.sequence, hit)
        self._waiting.remove(turn)
        self._deferred.pop(turn.id, None)
        self.counters.admitted += 1
        if extension and self._begin_restore(turn, extension):
            return True
        self._start(turn)
        self._plan_admitted(turn, attempt)
        return True

    def _start(self, turn: Turn) -> None:
        """Let a turn run from what its sequence holds."""
        turn.move(TurnStatus.RUNNING)
        turn.grid_origin = turn.sequence.frontier
        turn.rungs = self._rungs(turn)
        self._cache.promise(turn.sequence, turn.rungs)
        if turn.cached_tokens is None:
            turn.cached_tokens = turn.sequence.frontier
        bisect.insort(self._running, turn, key=lambda t: t.id)

    def _rungs(self, turn: Turn) -> list[int]:
        """Return where a turn's prefill stops for its state: also for those who wait for it."""
        waiting = itertools.islice(self._waiting, self._settings.max_num_seqs)
        for_others = {
            self._cache.shared_prefix(turn.sequence, self._opened(other).sequence)
            for other in waiting
            if other.salt == turn.salt and not other.num_in_flight  # else it is not all known
        }
        own = self._cache.rungs(turn.sequence)
        frontier = turn.sequence.frontier
        return sorted({*own, *(rung for rung in for_others if rung > frontier)})

    # -- restores --------------------------------------------------------------------------

    def _begin_restore(self, turn: Turn, num_tokens: int) -> bool:
        """Reserve what will be restored and leave the rest to the disk; False without room."""
        assert self._cold is not None
        try:
            self._cache.reserve_restore(turn.sequence, num_tokens)
        except CacheExhaustedError:
            self._cold.cancel(turn)
            return False
        turn.move(TurnStatus.WAITING_FOR_SSD)
        self._restoring.append(turn)
        self._cold.begin(turn)
        self.counters.ssd_restores += 1
        return True

    def _advance_restore(self, turn: Turn) -> None:
        """Commit what has arrived; when nothing more will, compute the rest."""
        assert self._cold is not None
        progress = self._cold.advance(turn, idle=not self._running)
        self._cache.commit(turn.sequence, progress.num_tokens)
        self._cache.publish(turn.sequence)
        if progress.state is not None:
            self._cache.reach(turn.sequence, progress.state, rung=True)
        if turn.cached_tokens is None:
            turn.restored_tokens += progress.num_tokens
        if progress.done:
            self._cache.rollback(turn.sequence, turn.sequence.cursor - turn.sequence.frontier)
            self._restoring.remove(turn)
            self._start(turn)

    def requeue_restoring(self) -> None:
        """Send every turn that waits for the disk back: what was written for it is lost."""
        for turn in list(self._restoring):
            self._stop_restoring(turn)
            self._release(turn)
            turn.move(TurnStatus.PREEMPTED)
            self._waiting.push_front(turn)

    def _stop_restoring(self, turn: Turn) -> None:
        if turn in self._restoring:
            assert self._cold is not None
            self._restoring.remove(turn)
            self._cold.cancel(turn)
            if turn.cached_tokens is None:
                turn.restored_tokens = 0  # what is left of them will be found in memory

    def _plan_admitted(self, turn: Turn, attempt: Attempt) -> None:
        (self._plan_decode if turn.wants_decode else self._plan_prefill)(turn, attempt)

    def _needed_tokens(self, turn: Turn, hit_length: int) -> int:
        """Return the tokens that a turn must have room for before it may start."""
        end = len(turn.tokens)
        if self._settings.reserve_full_prompt:
            return end
        return min(end, hit_length + self._settings.max_batched_tokens)

    def _reservations(self) -> list[tuple[Any, int]]:
        """Return the sequences that may still take blocks, and their known tokens."""
        if not self._settings.reserve_full_prompt:
            return []
        return [(t.sequence, len(t.tokens)) for t in (*self._running, *self._restoring)]

    def _watermark(self) -> float:
        """Return the share kept free while others run; nothing is kept from a lone turn."""
        alone = not self._running and not self._restoring
        return 0.0 if alone else self._settings.watermark_fraction

    # -- committing ------------------------------------------------------------------------

    def mark_in_flight(self, plan: StepPlan) -> None:
        """Note that the plan's sampled tokens are on their way."""
        for row in plan.rows:
            if row.samples:
                row.turn.num_in_flight += 1

    def settle(self, row: PlannedRow, token: int | None) -> bool:
        """Commit a computed row and take note of its sampled token.

        Args:
            row: A row of the oldest plan that is not settled.
            token: The sampled token, None if the row samples nothing.

        Returns:
            Whether the token counts: False for a turn that has finished meanwhile.
        """
        turn = row.turn
        if turn.status is TurnStatus.FINISHED:
            return False
        if turn.sequence is row.sequence:
            self._cache.commit(row.sequence, row.length)
            self._cache.publish(row.sequence)
        if token is None:
            return False
        turn.num_in_flight -= 1
        turn.tokens.append(token)
        if turn.sequence is row.sequence:
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
