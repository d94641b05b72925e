"""The loop: plan, build, read the step before, start, settle.

    build n+1   while the device computes n; the rows' newest tokens are still on it
    start n+1   if kernels make all writes to pages
    read n      waits for the device
    start n+1   else, at once: the device idles only between these two calls
    settle n    text, stop rules, publication: beside the device's work

A request that turns out to have ended in step n is already a row of n+1. That row is computed
and forgotten: it writes behind the committed frontier, into a block that nobody else reads.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import mlx.core as mx

from ..errors import (
    CacheExhaustedError,
    ContextLengthExceededError,
    EngineClosedError,
    NeveError,
)
from ..ids import RequestId
from ..log import get_logger
from ..sampling.sampler import RowState
from ..scheduler.request import Request, RequestStatus
from .commands import Call, Cancel, Close, Submit
from .completion import CacheReport, Completion, Timings, TokenLogprob, Usage
from .core import Core
from .handles import Handle
from .lanes import RowSnapshot
from .output import RequestOutput
from .runner import Step

RESTORE_WAIT_S = 0.002
"""How long the engine sleeps at most before it looks for commands, while the disk works."""

CLEAR_CACHE_STEPS = {"paged": 1024, "flat": 256}
"""Steps after which MLX's buffer cache is emptied, by lane."""


@attrs.define(eq=False)
class Job:
    """A request with its caller, its sampling state and its text."""

    request: Request
    handle: Handle
    state: RowState
    output: RequestOutput
    submitted_at: float
    admitted_at: float = 0.0
    first_token_at: float = 0.0


class Loop:
    """Runs on the engine thread until it is told to close."""

    def __init__(self, core: Core, commands: queue.SimpleQueue[Any]) -> None:
        self._core = core
        self._commands = commands
        self._scheduler = core.scheduler
        self._cold = core.cold
        self._jobs: dict[RequestId, Job] = {}
        self._in_flight: Step | None = None
        self._closing = False
        self._num_steps = 0
        self._read_at = 0.0
        self._log = get_logger("engine")

    def run(self) -> None:
        """Serve until closed; whatever still runs then fails."""
        try:
            while not self._closing:
                self._serve_commands()
                self._tend_cold()
                self._step()
        finally:
            for job in list(self._jobs.values()):
                self._fail(job, EngineClosedError("the model was closed"))
            if self._cold is not None:
                self._cold.close()
            self._core.journal.close()

    # -- commands --------------------------------------------------------------------------

    def _serve_commands(self) -> None:
        """Serve what has arrived; wait for an arrival if there is nothing else to do."""
        idle = self._is_idle
        while True:
            try:
                command = self._commands.get(idle, self._patience_s if idle else None)
            except queue.Empty:
                return
            self._serve(command)
            idle = False

    @property
    def _is_idle(self) -> bool:
        return self._scheduler.is_idle and self._in_flight is None

    @property
    def _patience_s(self) -> float | None:
        """How long an idle engine may wait for a command; None for ever."""
        return self._cold.patience_s if self._cold is not None else None

    def _tend_cold(self) -> None:
        """Write on behind requests that have ended; wait for the disk if all others do."""
        if self._cold is None:
            return
        self._cold.work(idle=self._is_idle)
        if self._in_flight is None and self._scheduler.only_restores:
            self._cold.wait(RESTORE_WAIT_S)

    def _serve(self, command: Submit | Cancel | Call | Close) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Cancel(request_id):
                self._cancel(request_id)
            case Call():
                self._call(command)
            case Close():
                self._closing = True

    def _submit(self, command: Submit) -> None:
        params, handle = command.params, command.handle
        limit = params.max_tokens if params.max_tokens is not None else 2**31
        request = Request(handle.id, list(command.prompt), limit, command.salt, command.owner)
        try:
            self._scheduler.submit(request)
        except ContextLengthExceededError as error:
            handle._fail(error)
            return
        state = RowState.create(
            params, vocab_size=self._core.info.vocab_size, prompt_tokens=command.prompt
        )
        info = self._core.info
        output = RequestOutput(info.tokenizer, info.eos_token_ids, params, request.max_tokens)
        self._jobs[request.id] = Job(request, handle, state, output, command.submitted_at)
        self._core.journal.begin(request.id)

    def _cancel(self, request_id: RequestId) -> None:
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self._core.journal.forget(request_id)
            self._persist(job.request, _nothing)
            self._scheduler.finish(job.request)
            job.handle._cancelled()

    def _call(self, command: Call) -> None:
        try:
            command.future.set_result(command.function(self._core))
        except Exception as error:  # noqa: BLE001  it belongs to whoever asked
            command.future.set_exception(error)

    # -- one step --------------------------------------------------------------------------

    def _step(self) -> None:
        previous, self._in_flight = self._in_flight, None
        try:
            step = self._build(previous)
        except Exception as error:  # noqa: BLE001  a family's forward may raise anything
            self._fail_running(error)
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
        except Exception as error:  # noqa: BLE001  so may the device
            self._fail_running(error)
            self._core.runner.lane.reset()
            return
        self._in_flight = step
        if previous is not None:
            self._settle(previous, *results)

    def _starts_early(self, step: Step | None, previous: Step | None) -> bool:
        """Return whether a step can go to the device before the one before it is read.

        The device then never waits for the host. What operations write to pages, a step's own
        keys or blocks from the disk, would be copies of pools while another step reads them.
        Two steps with slices would need memory for what both compute in between.
        """
        if step is None or previous is None or not (step.in_place and previous.in_place):
            return False
        restored = self._cold is not None and self._cold.wrote
        return bool(previous.tokens) and (step.decodes or previous.decodes) and not restored

    def _start(self, step: Step | None) -> None:
        if step is not None:
            step.start()
        elif self._cold is not None and self._cold.wrote:
            # no step takes the restored blocks along
            mx.eval(*self._core.runner.lane.arrays(()))
        if self._cold is not None:
            self._cold.wrote = False

    def _measure(self, step: Step) -> None:
        """Take down how long a step with slices has had the device for itself."""
        began, self._read_at = max(step.started_at, self._read_at), time.perf_counter()
        if self._cold is not None and step.plan.num_tokens > step.plan.num_decode_rows:
            self._cold.record_step(step.plan.num_tokens, self._read_at - began)

    def _build(self, previous: Step | None) -> Step | None:
        plan = self._scheduler.plan()
        for request in plan.preempted:
            mode = "spill" if request.spilled else "recompute"
            self._core.journal.trace.event("turn_preempted", turn=request.id, mode=mode)
        for request in plan.starved:
            error = CacheExhaustedError(1, self._scheduler.stats().block_available)
            self._fail(self._jobs[request.id], error)
        if not plan.rows:
            return None
        now = time.perf_counter()
        for row in plan.rows:
            self._note_admission(self._jobs[row.request.id], now)
        states = [self._jobs[row.request.id].state for row in plan.rows if row.samples]
        step = self._core.runner.build(plan, previous, states)
        self._scheduler.mark_in_flight(plan)
        if len(states) == len(plan.rows) and all(_is_plain(state) for state in states):
            self._scheduler.counters.fused_greedy_epilogue_steps += 1
        self._count_step()
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

    def _count_step(self) -> None:
        self._num_steps += 1
        if self._num_steps % CLEAR_CACHE_STEPS[self._core.info.lane] == 0:
            mx.clear_cache()

    def _settle(
        self, step: Step, tokens: list[int], logprobs: list[TokenLogprob | None]
    ) -> None:
        snapshots: dict[RequestId, list[RowSnapshot]] = {}
        for snapshot in step.snapshots:
            snapshots.setdefault(snapshot.row.request.id, []).append(snapshot)
        for row in step.plan.rows:
            index = step.sources.get(row.request.id)
            token = None if index is None else tokens[index]
            counts = self._scheduler.settle(row, token)
            for snapshot in snapshots.get(row.request.id, ()):
                self._keep(snapshot)
            if counts and index is not None:
                self._deliver(self._jobs[row.request.id], tokens[index], logprobs[index])

    def _keep(self, snapshot: RowSnapshot) -> None:
        """Keep a state that a step has reached, unless its request has lost its sequence."""
        request, sequence = snapshot.row.request, snapshot.row.sequence
        if request.sequence is sequence and request.status is not RequestStatus.FINISHED:
            cache = self._core.runner.lane.cache
            cache.reach(sequence, snapshot.state, rung=snapshot.rung)

    def _deliver(self, job: Job, token: int, logprob: TokenLogprob | None) -> None:
        job.first_token_at = job.first_token_at or time.perf_counter()
        wanted = job.state.params.logprobs
        if logprob is not None:
            logprob = attrs.evolve(logprob, top=logprob.top[:wanted]) if wanted else None
        job.handle._add(job.output.add(token, logprob))
        if job.output.finish_reason is not None:
            self._complete(job)

    # -- endings ---------------------------------------------------------------------------

    def _complete(self, job: Job) -> None:
        request, journal = job.request, self._core.journal
        del self._jobs[request.id]
        completion = self._completion(job)
        journal.trace.event("turn_finished", turn=request.id, reason=completion.finish_reason)
        self._persist(request, partial(journal.end, request.id, completion))
        self._scheduler.finish(request)
        job.handle._finish(completion)

    def _persist(self, request: Request, done: Callable[[], None]) -> None:
        """Have a request's blocks written; `done` is called when that has ended."""
        if self._cold is None:
            done()
        else:
            self._cold.remember(request, done)

    def _completion(self, job: Job) -> Completion:
        request, output = job.request, job.output
        assert output.finish_reason is not None
        assert request.cached_tokens is not None
        start, now = job.submitted_at, time.perf_counter()
        return Completion(
            text=output.text,
            tokens=tuple(output.tokens),
            finish_reason=output.finish_reason,
            usage=Usage(
                request.num_prompt_tokens,
                len(output.tokens),
                request.cached_tokens,
                request.restored_tokens,
            ),
            cache_report=self._cache_report(request),
            timings=Timings(
                queue_ms=(job.admitted_at - start) * 1e3,
                ttft_ms=(job.first_token_at - start) * 1e3,
                total_ms=(now - start) * 1e3,
            ),
            logprobs=tuple(output.logprobs),
        )

    def _cache_report(self, request: Request) -> CacheReport:
        cached, restored = request.cached_tokens or 0, request.restored_tokens
        size = self._core.info.settings.cache.paged_block_size
        complete = cached >= (request.num_prompt_tokens - 1) // size * size
        return CacheReport(
            hot_tokens=cached - restored,
            restored_tokens=restored,
            computed_tokens=request.num_prompt_tokens - cached,
            miss=None if complete and self._core.info.lane == "paged" else self._miss(request),
            preemptions=request.preemptions,
        )

    def _miss(self, request: Request) -> str:
        """Return why a request did not find all of its prefix."""
        if self._core.info.lane == "flat":
            return "no_cache"
        if request.miss not in {None, "no_block"} or request.held_tokens <= (
            request.cached_tokens or 0
        ):
            return request.miss or "no_block"
        # the next block is there: what the disk lacks, or would lack, is the state behind it
        return "no_state" if self._cold is None else "no_sidecar"

    def _fail(self, job: Job, error: BaseException) -> None:
        del self._jobs[job.request.id]
        self._core.journal.forget(job.request.id)
        self._scheduler.finish(job.request)
        job.handle._fail(error)

    def _fail_running(self, error: Exception) -> None:
        """Fail every request that a step may have touched; those that wait go on.

        Only committed blocks were ever published, so no other request has seen what the broken
        step wrote.
        """
        self._log.error("engine.step.failed", error=repr(error))
        for job in list(self._jobs.values()):
            if job.request.status is RequestStatus.RUNNING or job.request.num_in_flight:
                self._fail(job, _as_neve_error(error))
        self._scheduler.requeue_restoring()


def _nothing() -> None:
    """Do nothing."""


def _as_neve_error(error: Exception) -> Exception:
    if isinstance(error, NeveError):
        return error
    wrapped = NeveError(f"the step failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _is_plain(state: RowState) -> bool:
    """Whether a row is sampled by the wave's argmax and nothing else."""
    params = state.params
    return params.greedy and not params.penalised and not params.logit_bias
