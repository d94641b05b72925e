"""The planner: fills the rows of a step."""

from __future__ import annotations

from ..contract.tap import Tap
from ..errors import CacheExhaustedError
from ..settings import SchedulerSettings
from .admission import Admission
from .attempt import Attempt, Span
from .cache_port import CachePort
from .plan import PlannedRow, Preempted, SnapshotKind, StepPlan
from .preemption import Preemption
from .request import Request
from .restores import Restores
from .roster import Roster
from .telemetry import SchedulerCounters


class Planner:
    """Fills a step with rows of waves, then slices of prompts, then new requests."""

    def __init__(
        self,
        settings: SchedulerSettings,
        cache: CachePort,
        roster: Roster,
        counters: SchedulerCounters,
        *,
        restores: Restores,
        admission: Admission,
        preemption: Preemption,
        block_size: int,
        row_exact: bool,
        taps: tuple[Tap, ...],
    ) -> None:
        """Make the planner of a scheduler; see `Scheduler` for the arguments."""
        self._settings = settings
        self._cache = cache
        self._roster = roster
        self._counters = counters
        self._restores = restores
        self._admission = admission
        self._preemption = preemption
        self._block_size = block_size
        self._row_exact = row_exact
        self._taps = taps

    def plan(self) -> StepPlan:
        """Return the rows of the next step and reserve their positions."""
        attempt = Attempt(self._settings.max_batched_tokens)
        for request in list(self._roster.restoring):
            if self._restores.advance(request):
                self._admission.start(request)
        # iterate over copies: a preemption shortens the list
        for slices in (False, True):
            for request in list(self._roster.running):
                if request not in attempt and request.is_ready:
                    self._plan_request(request, attempt, slices=slices)
        if not attempt.preempted:
            self._admit(attempt)
            self._add_drafts(attempt)
        return attempt.result(self._row, self._taps)

    def _plan_request(self, request: Request, attempt: Attempt, *, slices: bool) -> None:
        """Plan the known pending tokens of a request, as a slice or as a row of a wave.

        Nothing is planned if the request is not of the kind that `slices` asks for.
        """
        pending = request.num_pending
        is_slice = pending > 1
        if not pending or is_slice is not slices:
            return
        length = self._slice_length(request, attempt) if is_slice else min(1, attempt.budget)
        if length > 0:
            self._plan_span(Span(request, length), attempt)

    def _add_drafts(self, attempt: Attempt) -> None:
        """Let rows of a wave verify drafts, as far as budget and blocks are left over.

        Drafts are added last. A request without room for drafts decodes.
        """
        for span in attempt.spans:
            request = span.request
            if not request.drafts or span.is_slice:
                continue
            if request.num_computed != request.num_known:
                continue
            drafts = min(request.num_drafted, max(0, attempt.budget))
            if drafts and self._reserve_again(span, drafts):
                attempt.add(Span(request, span.length + drafts, drafts))

    def _reserve_again(self, span: Span, drafts: int) -> bool:
        """Reserve a span with drafts in place of the span; False without room for all.

        One reservation: the window of the first token must stay until all are computed.
        """
        sequence = span.request.sequence
        self._cache.rewind(sequence, span.length)
        try:
            self._cache.reserve(sequence, span.length + drafts)
        except CacheExhaustedError:
            self._cache.reserve(sequence, span.length)
            return False
        return True

    def _slice_length(self, request: Request, attempt: Attempt) -> int:
        """Return the length of the next slice: up to the next break, within the budget."""
        chunk, cursor = self._settings.prefill_chunk_size, request.num_computed
        to_break = chunk - (cursor - request.grid_origin) % chunk
        stops = [boundary - cursor for boundary in request.boundaries if boundary > cursor]
        pending = request.num_known - cursor
        length = min(pending, to_break, self._settings.long_prefill_tokens, *stops)
        if not self._row_exact:
            return min(length, attempt.budget)
        # a row-exact slice is never cut: it fits the budget, or is the only slice of its step
        return length if length <= attempt.budget or not attempt.num_slices else 0

    def _plan_span(self, span: Span, attempt: Attempt) -> None:
        """Reserve a span. At most one request per step is preempted for blocks."""
        while True:
            try:
                self._cache.reserve(span.request.sequence, span.length)
            except CacheExhaustedError:
                if attempt.preempted or not self._make_room(span.request, attempt):
                    self._counters.rows_alloc_evicted += 1
                    return
            else:
                attempt.add(span)
                return

    def _row(self, span: Span) -> PlannedRow:
        """Return a span as the plain values of a plan."""
        request, sequence = span.request, span.request.sequence
        position = sequence.cursor - span.length
        known_end = sequence.cursor - span.num_drafts
        samples = known_end == request.num_known
        return PlannedRow(
            request=request.id,
            sequence=sequence.id,
            position=position,
            on_device=position == len(request.tokens),
            tokens=tuple(request.tokens[position:known_end]),
            drafts=request.drafts[: span.num_drafts],
            num_logits=1 + span.num_drafts if samples else 0,
            num_hidden=span.length if self._taps else 0,
            snapshot=self._snapshot(request, samples=samples and not span.num_drafts),
            blocks=self._cache.take_table_changes(sequence),
        )

    def _snapshot(self, request: Request, *, samples: bool) -> SnapshotKind:
        """Return whether the state at a request's cursor is kept."""
        if not self._cache.snapshots.enabled:
            return "none"
        cursor = request.num_computed
        if cursor in request.boundaries:
            return "shared"
        return "newest" if samples and cursor % self._block_size == 0 else "none"

    def _make_room(self, request: Request, attempt: Attempt) -> bool:
        """Preempt one request; return whether `request` may try again."""
        if len(self._roster.admitted) == 1:
            attempt.starved.append(request.id)
            return False
        victim, spilled = self._preemption.preempt()
        attempt.drop(victim)
        attempt.preempted.append(Preempted(victim.id, spilled))
        return victim is not request

    def _admit(self, attempt: Attempt) -> None:
        """Admit requests in arrival order, up to the first one that lacks blocks.

        A request is skipped while a live sequence is computing blocks of its prefix. Admitted
        earlier, the request would compute the same blocks a second time.
        """
        for request in self._roster.waiting:
            if not self._admission.has_place or attempt.budget < 1:
                return
            if request.awaits_tokens:
                return  # preempted while in flight: the host has not read its last token
            if self._admission.steps_aside(request):
                continue
            if not self._admission.try_admit(request):
                return
            if request.is_ready:
                self._plan_request(request, attempt, slices=request.num_pending > 1)
