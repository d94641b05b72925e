"""Continuous batching: plans steps and settles their results.

A step may contain prefill and decode. Each step has one token budget. Waves take their tokens
first, and slices of prompts share the rest. `plan` reserves positions and `settle` commits
them. Step n+1 is planned before step n is settled. Requests without look-ahead skip step n+1.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..contract.tap import Tap
from ..errors import ContextLengthExceededError
from ..settings import SchedulerSettings
from .admission import Admission
from .cache_port import CachePort
from .cold_port import ColdPort
from .plan import PlannedRow, StepPlan
from .planner import Planner
from .preemption import Preemption
from .request import Request, RequestStatus
from .restores import Restores
from .roster import Roster
from .telemetry import SchedulerCounters, SchedulerStats


class Scheduler:
    """Continuous batching over one cache. Pure Python; owned by the engine thread.

    Attributes:
        counters: Counters since load; the engine counts restores and greedy steps here too.
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
        taps: tuple[Tap, ...] = (),
    ) -> None:
        """Make an empty scheduler.

        Args:
            settings: Limits and budgets.
            cache: The cache of all sequences.
            max_context: Most positions of a sequence in the model.
            block_size: Tokens of a block.
            row_exact: Whether prefill is cut only at breaks and boundaries and never by the
                budget, so that a request's slices do not depend on other requests.
            counters: Counters that other parts share; None makes new ones.
            cold: The cold tier; None without one.
            taps: Places in the model whose hidden states a drafter reads, for every token.
        """
        self.counters = counters or SchedulerCounters()
        self._cache = cache
        self._max_context = max_context
        self._roster = roster = Roster()
        self._restores = Restores(cache, roster, self.counters, cold)
        self._admission = Admission(settings, cache, roster, self.counters, self._restores)
        self._preemption = Preemption(cache, roster, self.counters, self._restores, block_size)
        self._planner = Planner(
            settings,
            cache,
            roster,
            self.counters,
            restores=self._restores,
            admission=self._admission,
            preemption=self._preemption,
            block_size=block_size,
            row_exact=row_exact,
            taps=taps,
        )

    # -- submitting and finishing ----------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request and clamp its `max_tokens` to the context and the cache.

        The last sampled token needs no cache position, hence the `+ 1`.

        Raises:
            ContextLengthExceededError: The prompt alone exceeds the context or the cache.
        """
        bound, what = min(
            (self._max_context, "the model's context"),
            (self._cache.max_tokens, f"the cache ({self._cache.max_usable_blocks} blocks)"),
        )
        if request.num_prompt_tokens > bound:
            raise ContextLengthExceededError(request.num_prompt_tokens, bound, what)
        request.max_tokens = min(request.max_tokens, bound - request.num_prompt_tokens + 1)
        self._roster.enter(request)

    def finish(self, request: Request) -> None:
        """Remove a request of any status and release its blocks."""
        self._restores.stop(request)
        request.move(RequestStatus.FINISHED)
        self._roster.leave(request)
        self._admission.forget(request)
        self._preemption.release(request)
        self.counters.completed += 1

    def requeue_restoring(self) -> None:
        """Return every restoring request to the queue, because its restored blocks are lost."""
        for request in list(self._roster.restoring):
            self._preemption.send_back(request)

    @property
    def requests(self) -> Sequence[Request]:
        """Every request that has not finished, running ones first."""
        return self._roster.all

    @property
    def is_idle(self) -> bool:
        """Whether there are no requests."""
        return not self._roster.admitted and not len(self._roster.waiting)

    @property
    def only_restores(self) -> bool:
        """Whether requests are restoring and none is running."""
        return bool(self._roster.restoring) and not self._roster.running

    # -- planning --------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Return the rows of the next step and reserve their positions."""
        plan = self._planner.plan()
        if plan.rows:
            self.counters.count_step(plan)
        return plan

    # -- settling --------------------------------------------------------------------------

    def propose(self, request: Request, drafts: Sequence[int]) -> None:
        """Set the drafts that the next step verifies.

        Drafts are dropped if the request has a token in flight, since drafts continue the
        newest token.

        Args:
            request: The request.
            drafts: Proposals for the next tokens; earlier drafts are replaced.
        """
        request.drafts = () if request.awaits_tokens else tuple(drafts)

    def mark_in_flight(self, plan: StepPlan) -> None:
        """Mark the tokens that a plan samples as in flight."""
        for row in plan.rows:
            request = self._roster.get(row.request)
            if request is None or not row.samples:
                continue
            request.drafts = ()
            if row.drafts:
                request.is_verifying = True
            else:
                request.num_in_flight += 1

    def settle(self, row: PlannedRow, tokens: Sequence[int]) -> Request | None:
        """Record the tokens of a computed row, commit its positions, and rewind the rest.

        Args:
            row: A row of the oldest plan that is not settled.
            tokens: The accepted drafts and the next token; empty for rows without logits.

        Returns:
            The request; None if the request has finished meanwhile. Its tokens are dropped.
        """
        request = self._roster.get(row.request)
        if request is None:
            return None
        if row.drafts:
            request.is_verifying = False
        elif row.samples:
            request.num_in_flight -= 1
        request.tokens.extend(tokens)
        sequence = request.sequence
        if sequence is not None and sequence.id == row.sequence:
            rejected = row.num_logits - len(tokens) if row.samples else 0
            if tokens:
                self._cache.record(sequence, tokens)
            self._cache.commit(sequence, row.length - rejected)
            if rejected:
                self._cache.rewind(sequence, rejected)
            self._cache.publish(sequence)
        return request

    # -- figures ---------------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        """Return the present figures."""
        counters = attrs.asdict(self.counters, recurse=False)
        counters["decode_batch_occupancy_hist"] = dict(
            self.counters.decode_batch_occupancy_hist
        )
        watermark = self._admission.watermark() * self._cache.max_usable_blocks
        return SchedulerStats(
            **counters,
            running=len(self._roster.running),
            ssd_restore_waiting=len(self._roster.restoring),
            waiting=len(self._roster.waiting),
            block_capacity=self._cache.max_usable_blocks,
            block_available=self._cache.num_available,
            block_watermark=int(watermark),
            reserved_blocks=self._cache.num_reserved(self._admission.reservations()),
        )
