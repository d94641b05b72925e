"""Records of requests: the trace, and one log line per request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

from ..coldtier.stats import ColdCacheStats, ColdSidecarStats
from ..ids import RequestId
from ..telemetry.trace import Trace
from ..telemetry.turn_log import TurnLog, TurnRecord, mean_decode_batch
from .completion import Completion

ColdStats: TypeAlias = tuple[ColdCacheStats, ColdSidecarStats]


@attrs.frozen
class _Before:
    """Counts when a request was submitted."""

    cold: ColdStats
    decode_rows: Mapping[int, int]


class Journal:
    """Writes the records of requests. Without a turn log, no counts are copied.

    Attributes:
        trace: Events of the engine.
    """

    def __init__(
        self,
        model: str,
        trace: Trace,
        turn_log: TurnLog | None,
        cold: Callable[[], ColdStats],
        decode_rows: Mapping[int, int],
    ) -> None:
        """Make the journal of a model.

        Args:
            model: The model's name in the records.
            trace: The destination of events.
            turn_log: The destination of log lines; None: lines are not written.
            cold: Returns the present counts of the cold tier.
            decode_rows: Number of decode rows -> steps with that number. The scheduler
                updates this mapping.
        """
        self.trace = trace
        self._model = model
        self._turn_log = turn_log
        self._cold = cold
        self._decode_rows = decode_rows
        self._before: dict[RequestId, _Before] = {}

    def begin(self, request: RequestId) -> None:
        """Copy the counts at the submission of a request."""
        if self._turn_log is not None:
            self._before[request] = _Before(self._cold(), dict(self._decode_rows))

    def forget(self, request: RequestId) -> None:
        """Drop the counts of a request that failed or was cancelled."""
        self._before.pop(request, None)

    def end(self, request: RequestId, done: Completion) -> None:
        """Write a request's line. Call this after the end of the request's capture."""
        before = self._before.pop(request, None)
        if self._turn_log is None or before is None:
            return
        cold, sidecar = self._cold()
        self._turn_log.write(
            self._record(request, done, before, cold_enabled=cold.enabled),
            cold=(before.cold[0], cold),
            sidecar=(before.cold[1], sidecar),
        )

    def _record(
        self, request: RequestId, done: Completion, before: _Before, *, cold_enabled: bool
    ) -> TurnRecord:
        return TurnRecord(
            turn=request,
            model=self._model,
            finish_reason=done.finish_reason,
            miss=done.cache_report.miss,
            preemptions=done.cache_report.preemptions,
            decode_batch=mean_decode_batch(before.decode_rows, self._decode_rows),
            cold_enabled=cold_enabled,
            **attrs.asdict(done.usage),
            **attrs.asdict(done.timings),
        )

    def close(self) -> None:
        """Close the files."""
        try:
            self.trace.close()
        finally:
            if self._turn_log is not None:
                self._turn_log.close()
