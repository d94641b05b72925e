"""Jobs: requests with their handles, sampling states and outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import attrs

from ..errors import NonFiniteLogitsError
from ..ids import RequestId
from ..log import get_logger, origin
from ..sampling.sampler import RowState
from ..scheduler.request import Request, RequestStatus
from .completion import CacheReport, Completion, Timings, Usage
from .core import Core, ModelInfo
from .endings import request_error, run_all, step_error
from .faults import Faults
from .handles import Handle
from .output import RequestOutput


@attrs.define(eq=False)
class Job:
    """A request with its handle, sampling state and output."""

    request: Request
    handle: Handle
    state: RowState
    output: RequestOutput
    submitted_at: float
    admitted_at: float = 0.0
    first_token_at: float = 0.0


class Jobs:
    """The unfinished jobs. Owned by the engine thread."""

    def __init__(self, core: Core, faults: Faults) -> None:
        """Make an empty set of jobs.

        Args:
            core: The model.
            faults: Counts faults of single jobs.
        """
        self._core = core
        self._faults = faults
        self._jobs: dict[RequestId, Job] = {}
        self._log = get_logger("engine")

    def __getitem__(self, request: RequestId) -> Job:
        return self._jobs[request]

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._jobs.values()))

    def add(self, job: Job) -> None:
        """Add a job. Its request must be in the scheduler's queue."""
        self._core.journal.begin(job.request.id)
        self._jobs[job.request.id] = job

    def cancel(self, request: RequestId) -> None:
        """Cancel a job; an ended job is ignored."""
        job = self._jobs.pop(request, None)
        if job is not None:
            self._core.journal.forget(request)
            self._leave(job.request, _nothing)
            job.handle._cancelled()

    def complete(self, job: Job) -> None:
        """End a job with a complete answer."""
        request, journal = job.request, self._core.journal
        completion = completion_of(job, self._core.info, has_cold=self._core.cold is not None)
        reason = completion.finish_reason
        journal.trace.event("turn_finished", turn=request.id, reason=reason)
        del self._jobs[request.id]
        self._leave(request, partial(self._write_down, request.id, completion))
        job.handle._finish(completion)

    def _write_down(self, request: RequestId, completion: Completion) -> None:
        with self._faults.contain("journal"):
            self._core.journal.end(request, completion)

    def _leave(self, request: Request, done: Callable[[], None]) -> None:
        """Queue the capture of a request, then release its blocks.

        Errors are counted: they must not change the answer.
        """
        finish = partial(self._core.scheduler.finish, request)
        run_all((partial(self._persist, request, done), finish), self._faults, "request")

    def _persist(self, request: Request, done: Callable[[], None]) -> None:
        """Queue the capture of a request; `done` is called at the end of the capture."""
        if self._core.cold is None:
            done()
        else:
            self._core.cold.captures.remember(request, done)

    def fail(self, job: Job, error: Exception) -> None:
        """End a job with an error. The handle fails even if other cleanup raises."""
        request = job.request
        self._jobs.pop(request.id, None)
        steps = (
            partial(self._core.journal.forget, request.id),
            partial(self._core.scheduler.finish, request),
            partial(job.handle._fail, error),
        )
        run_all(steps, self._faults, "request")

    def fail_alone(self, request: RequestId, error: BaseException) -> None:
        """End a job with an error of its own work; an ended job is not changed."""
        self._faults.count("request", error)
        job = self._jobs.get(request)
        if job is not None:
            self.fail(job, request_error(error))

    def fail_non_finite(self, request: RequestId, position: int) -> None:
        """End a job with NaN or infinite logits at a position; an ended job is ignored."""
        job = self._jobs.get(request)
        if job is not None:
            error = NonFiniteLogitsError(request, position)
            self._faults.count("non_finite_logits", error)
            self.fail(job, error)

    def fail_running(self, error: BaseException) -> None:
        """Fail every request that a failed step may have changed. Waiting requests continue.

        Published blocks are committed, so other requests never read the writes of a failed
        step. If no request runs, all requests fail: the waiting requests caused the error,
        and the next step would fail again.

        Raises:
            BaseException: The error, if there are no jobs.
        """
        self._log.error("engine.step.failed", error=origin(error))
        jobs = list(self)
        if not jobs:
            raise error
        for job in [job for job in jobs if _is_touched(job.request)] or jobs:
            self.fail(job, step_error(error))
        self._core.scheduler.requeue_restoring()


def _is_touched(request: Request) -> bool:
    return request.status is RequestStatus.RUNNING or request.awaits_tokens


def completion_of(job: Job, info: ModelInfo, *, has_cold: bool) -> Completion:
    """Return the completion of a finished job.

    Args:
        job: The job.
        info: Facts about the model.
        has_cold: Whether the model has a cold tier.
    """
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
        cache_report=_cache_report(request, info, has_cold=has_cold),
        timings=Timings(
            queue_ms=(job.admitted_at - start) * 1e3,
            ttft_ms=(job.first_token_at - start) * 1e3,
            total_ms=(now - start) * 1e3,
        ),
        logprobs=tuple(output.logprobs),
    )


def _cache_report(request: Request, info: ModelInfo, *, has_cold: bool) -> CacheReport:
    cached, restored = request.cached_tokens or 0, request.restored_tokens
    size = info.settings.cache.paged_block_size
    complete = cached >= (request.num_prompt_tokens - 1) // size * size
    found_all = complete and info.lane == "paged"
    return CacheReport(
        hot_tokens=cached - restored,
        restored_tokens=restored,
        computed_tokens=request.num_prompt_tokens - cached,
        miss=None if found_all else _miss(request, info.lane, has_cold=has_cold),
        preemptions=request.preemptions,
    )


def _miss(request: Request, lane: str, *, has_cold: bool) -> str:
    """Return the miss cause of a request."""
    if lane == "flat":
        return "no_cache"
    cached = request.cached_tokens or 0
    if request.miss not in {None, "no_block"} or request.held_tokens <= cached:
        return request.miss or "no_block"
    # the next block is in memory, so only the snapshot or window at its end is missing
    return "no_sidecar" if has_cold else "no_state"


def _nothing() -> None:
    """Do nothing."""
