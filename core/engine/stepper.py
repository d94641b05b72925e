"""The stepper: keeps one step in flight while the host builds the next one.

    build n+1   while the device computes n; newest tokens are still on the device
    start n+1   if kernels make all writes to pages in both steps
    read n      waits for the device
    start n+1   otherwise; the device is idle only between read and start
    settle n    text, stop rules, publication, while the device computes n+1

A request that ends in step n already has a row in step n+1. The row's results are dropped. Its
writes are behind the committed frontier, in a block that no other request reads. A request
without look-ahead has no row in step n+1, and other requests are not delayed.
"""

from __future__ import annotations

import time

import attrs
import mlx.core as mx

from ..errors import CacheExhaustedError
from ..ids import RequestId
from ..sampling.acceptance import accepted
from ..sampling.sampler import RowState
from ..scheduler.plan import PlannedRow, StepPlan
from ..scheduler.request import Request
from .completion import TokenLogprob
from .core import Core
from .jobs import Job, Jobs
from .lanes import RowSnapshot
from .runner import Step

CLEAR_CACHE_STEPS = {"paged": 1024, "flat": 256}
"""Steps after which MLX's buffer cache is emptied, by lane."""


class Stepper:
    """Keeps one step in flight. Owned by the engine thread."""

    def __init__(self, core: Core, jobs: Jobs) -> None:
        self._core = core
        self._jobs = jobs
        self._scheduler = core.scheduler
        self._cold = core.cold
        self._in_flight: Step | None = None
        self._num_steps = 0
        self._read_at = 0.0

    @property
    def in_flight(self) -> bool:
        """Whether a step has been started and not read."""
        return self._in_flight is not None

    def step(self) -> None:
        """Start the next step and settle the one before it."""
        previous, self._in_flight = self._in_flight, None
        try:
            step = self._build(previous)
        except BaseException as error:  # noqa: BLE001  a family's forward may raise anything
            self._jobs.fail_running(error)
            self._core.runner.lane.reset()
            return
        early = self._starts_early(step, previous)
        try:
            if early:
                self._start(step)
            results = previous.read(others_run=early) if previous else ([], [])
            if previous is not None:
                self._measure(previous)
            if not early:
                self._start(step)
        except BaseException as error:  # noqa: BLE001  evaluation may raise anything too
            self._jobs.fail_running(error)
            self._core.runner.lane.reset()
            return
        self._in_flight = step
        if previous is not None:
            self._settle(previous, *results)

    def _build(self, previous: Step | None) -> Step | None:
        plan = self._scheduler.plan()
        for victim in plan.preempted:
            mode = "spill" if victim.spilled else "recompute"
            self._core.journal.trace.event("turn_preempted", turn=victim.request, mode=mode)
        for starved in plan.starved:
            error = CacheExhaustedError(1, self._scheduler.stats().block_available)
            self._jobs.fail(self._jobs[starved], error)
        if not plan.rows:
            return None
        now = time.perf_counter()
        jobs = {row.request: self._jobs[row.request] for row in plan.rows}
        for job in jobs.values():
            self._note_admission(job, now)
        states = {request: job.state for request, job in jobs.items()}
        step = self._core.runner.build(plan, previous, states)
        self._scheduler.mark_in_flight(plan)
        self._count_step(plan, states)
        return step

    def _note_admission(self, job: Job, now: float) -> None:
        if job.admitted_at:
            return
        job.admitted_at, request = now, job.request
        self._core.journal.trace.event(
            "turn_admitted",
            turn=request.id,
            hot_tokens=(request.cached_tokens or 0) - request.restored_tokens,
            restored_tokens=request.restored_tokens,
        )

    def _count_step(self, plan: StepPlan, states: dict[RequestId, RowState]) -> None:
        if all(row.samples and _is_plain(states[row.request]) for row in plan.rows):
            self._scheduler.counters.fused_greedy_epilogue_steps += 1
        self._num_steps += 1
        if self._num_steps % CLEAR_CACHE_STEPS[self._core.info.lane] == 0:
            mx.clear_cache()

    def _starts_early(self, step: Step | None, previous: Step | None) -> bool:
        """Return whether a step can start before the previous step is read.

        An early start keeps the device busy. Three cases exclude it. MLX operations that write
        pages would copy pools that the previous step reads. So would writes of restored
        blocks. Two steps with slices would hold the temporary arrays of both in memory.
        """
        if step is None or previous is None or not (step.in_place and previous.in_place):
            return False
        restored = self._cold is not None and self._cold.restores.wrote
        return bool(previous.fences) and (step.decodes or previous.decodes) and not restored

    def _start(self, step: Step | None) -> None:
        restores = None if self._cold is None else self._cold.restores
        if step is not None:
            step.start()
        elif restores is not None and restores.wrote:
            # without a step, the restored blocks are evaluated here
            mx.eval(*self._core.runner.lane.arrays(()))
        if restores is not None:
            restores.wrote = False

    def _measure(self, step: Step) -> None:
        """Record the device time of a step that contains prefill."""
        began, self._read_at = max(step.started_at, self._read_at), time.perf_counter()
        if self._cold is not None and step.plan.has_slices:
            self._cold.record_step(step.plan.num_tokens, self._read_at - began)

    def _settle(
        self, step: Step, tokens: list[int | None], logprobs: list[TokenLogprob | None]
    ) -> None:
        snapshots = {snapshot.row.request: snapshot for snapshot in step.snapshots}
        for row in step.plan.rows:
            first = step.sources.get(row.request, 0)
            drawn = slice(first, first + row.num_logits)
            snapshot = snapshots.get(row.request)
            try:
                self._settle_row(row, tokens[drawn], logprobs[drawn], snapshot)
            except BaseException as error:  # noqa: BLE001  the error ends this request only
                self._jobs.fail_alone(row.request, error)

    def _settle_row(
        self,
        row: PlannedRow,
        tokens: list[int | None],
        logprobs: list[TokenLogprob | None],
        snapshot: RowSnapshot | None,
    ) -> None:
        drawn = accepted(row.drafts, tokens)
        kept = [token for token in drawn if token is not None]
        if len(kept) < len(drawn):
            # fail before settling, so that no block of the row is published
            self._jobs.fail_non_finite(row.request, row.end - row.num_logits + len(kept))
            return
        request = self._scheduler.settle(row, kept)
        if request is None:
            return
        if snapshot is not None:
            self._keep(request, snapshot)
        self._deliver(row, kept, logprobs)

    def _keep(self, request: Request, snapshot: RowSnapshot) -> None:
        """Keep a state at a boundary, unless the request was preempted meanwhile."""
        row, sequence = snapshot.row, request.sequence
        if sequence is not None and sequence.id == row.sequence:
            cache = self._core.runner.lane.cache
            cache.snapshots.reach(sequence, snapshot.state, shared=row.snapshot == "shared")

    def _deliver(
        self, row: PlannedRow, tokens: list[int], logprobs: list[TokenLogprob | None]
    ) -> None:
        """Give a request's tokens to its handle, up to the token that ends the answer."""
        job = self._jobs[row.request]
        if tokens and row.drafts:
            job.state.accept(mx.array(tokens, mx.int32), count=len(tokens))
        for token, logprob in zip(tokens, logprobs, strict=False):
            job.first_token_at = job.first_token_at or time.perf_counter()
            wanted = job.state.params.logprobs
            if logprob is not None:
                logprob = attrs.evolve(logprob, top=logprob.top[:wanted]) if wanted else None
            job.handle._add(job.output.add(token, logprob))
            if job.output.finish_reason is not None:
                self._jobs.complete(job)
                return


def _is_plain(state: RowState) -> bool:
    """Return whether a row is sampled by the argmax of its logits alone."""
    params = state.params
    return params.greedy and not params.penalised and not params.logit_bias
