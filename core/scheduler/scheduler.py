"""Who runs in the next step.

There are no phases: each step has one token budget, waves take their tokens first, and the
rest goes to slices of prompts. Deciding (`plan`) and committing (`settle`) are two calls, and
the plan of step n+1 is made before step n is settled, but for requests that must see their
newest token first.
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
        taps: tuple[Tap, ...] = (),
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
        self._roster.enter(request)

    def finish(self, request: Request) -> None:
        """Take a request out, wherever it is, and give back all that it holds."""
        self._restores.stop(request)
        request.move(RequestStatus.FINISHED)
        self._roster.leave(request)
        self._admission.forget(request)
        self._preemption.release(request)
        self.counters.completed += 1

    def requeue_restoring(self) -> None:
        """Send every request that waits for the disk back: its restored blocks are lost."""
        for request in list(self._roster.restoring):
            self._preemption.send_back(request)

    @property
    def requests(self) -> Sequence[Request]:
        """Every request that has not finished, running ones first."""
        return self._roster.all

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to run and nothing to wait for."""
        return not self._roster.admitted and not len(self._roster.waiting)

    @property
    def only_restores(self) -> bool:
        """Whether nothing can be computed before the disk has answered."""
        return bool(self._roster.restoring) and not self._roster.running

    # -- deciding --------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Return the rows of the next step and reserve their positions."""
        plan = self._planner.plan()
        if plan.rows:
            self.counters.count_step(plan)
        return plan

    # -- committing ------------------------------------------------------------------------

    def propose(self, request: Request, drafts: Sequence[int]) -> None:
        """Offer tokens for the next step to verify, behind a request's newest token.

        Args:
            request: A request whose tokens the host has all read.
            drafts: Its proposals; they replace earlier ones.
        """
        request.drafts = () if request.awaits_tokens else tuple(drafts)

    def mark_in_flight(self, plan: StepPlan) -> None:
        """Note that the plan's sampled tokens are on their way."""
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
            tokens: The row's tokens: none if it samples nothing, else the accepted drafts and
                the token behind them.

        Returns:
            The request; None if it has finished meanwhile, so that its tokens are void.
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

    # -- looking ---------------------------------------------------------------------------

    def stats(self) -> SchedulerStats:
        """Return the figures as they are now."""
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
