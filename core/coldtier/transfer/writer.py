"""The writer thread, with a short queue in front of the store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import attrs

from ...log import get_logger
from ..objects.keys import ColdGroup, ObjectName
from ..stats import Counters
from ..store.store import WriteOutcome

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEPTH = 8
IDLE_S = 1.0

_LANDED = (WriteOutcome.WRITTEN, WriteOutcome.PRESENT)
_reported: set[tuple[str, int | None]] = set()  # (type, errno) of errors already logged


class Store(Protocol):
    """The store, as the writer uses it."""

    def write(
        self, name: ObjectName, parts: Sequence[Buffer], stamp_ns: int, /
    ) -> WriteOutcome:
        """Make an object durable, or return the refusal."""
        ...

    def flush_touches(self) -> None:
        """Write the last uses of objects to disk."""
        ...


@attrs.frozen(eq=False)
class WriteJob:
    """An object to write.

    Attributes:
        name: The object's name.
        encode: Makes the file's pieces, on the writer thread; its references stay in memory
            until the object is written.
        stamp_ns: The object's last use.
    """

    name: ObjectName
    encode: Callable[[], Sequence[Buffer]]
    stamp_ns: int


@attrs.define(eq=False)
class _Barrier:
    """A mark in the queue; `landed` is None until the writer has reached the mark."""

    landed: bool | None = None


class ColdWriter:
    """Writes objects one after the other, on a thread of its own.

    An offer waits for the disk only on request, and never raises a write error: errors are
    counted, and each kind is logged once. The queue bounds memory: an object keeps its place
    until its bytes are released, even while it is being written.

    Attributes:
        last_refusal: The store's last refusal; None before the first.
        num_refusals: Number of objects that the store has refused.
    """

    def __init__(self, store: Store, counters: Counters, depth: int = DEPTH) -> None:
        if depth < 1:
            raise ValueError(f"the queue has at least one place, got {depth}")
        self.last_refusal: WriteOutcome | None = None
        self.num_refusals = 0
        self._store = store
        self._counters = counters
        self._depth = depth
        self._queue: deque[WriteJob | _Barrier] = deque()
        self._num_jobs = 0  # queued, or in work
        self._landed = True  # all writes since the last barrier were successful
        self._closed = False  # no more jobs are accepted
        self._ended = False  # no more barriers are answered
        self._changed = threading.Condition()
        self._log = get_logger("coldtier")
        self._thread = threading.Thread(target=self._run, name="neve-cold-writer", daemon=True)
        self._thread.start()

    @property
    def free_slots(self) -> int:
        """Objects that an offer would enqueue now."""
        with self._changed:
            return 0 if self._closed else self._depth - self._num_jobs

    def offer(self, job: WriteJob) -> bool:
        """Enqueue an object; a full or closed queue drops the object."""
        return self.offer_before(job, 0.0)

    def offer_before(self, job: WriteJob, deadline: float) -> bool:
        """Enqueue an object, waiting for a free place until a deadline.

        Args:
            job: The object.
            deadline: Time at which the object is dropped, in `time.monotonic`.

        Returns:
            Whether the object was enqueued; only `drain` tells whether writes succeeded.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._num_jobs < self._depth,
                max(0.0, deadline - time.monotonic()),
            )
            admitted = not self._closed and self._num_jobs < self._depth
            # counted before the thread sees the job, so that no error precedes its object
            self._count_offer(job.name, "enqueued" if admitted else "queue_drops")
            if admitted:
                self._num_jobs += 1
                self._queue.append(job)
                self._changed.notify_all()
        return admitted

    def drain(self, timeout_s: float) -> bool:
        """Wait until every object enqueued before this call has been processed.

        A drain that times out is no barrier: the next drain also covers its writes.

        Returns:
            Whether every write since the last barrier succeeded, and in time.
        """
        with self._changed:
            return self._await_barrier(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Accept no more objects, drain the queue, and end the thread.

        Objects still queued after `timeout_s` are dropped and count as write errors.
        The thread outlives this call if the disk does not answer.

        Returns:
            As `drain`.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            landed = self._await_barrier(timeout_s)
            self._drop_queue()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return landed

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    # -- with the lock held ----------------------------------------------------------------

    def _count_offer(self, name: ObjectName, count: str) -> None:
        self._counters.add(**{count: 1})
        if name.group is not ColdGroup.KV:
            self._counters.add_sidecar(**{count: 1})

    def _await_barrier(self, timeout_s: float) -> bool:
        barrier = _Barrier()
        if self._ended:
            self._answer(barrier)
            return bool(barrier.landed)
        self._queue.append(barrier)  # a barrier needs no place in the queue
        self._changed.notify_all()
        self._changed.wait_for(lambda: barrier.landed is not None, timeout_s)
        if barrier.landed is None:
            self._queue.remove(barrier)
        return bool(barrier.landed)

    def _answer(self, barrier: _Barrier) -> None:
        barrier.landed, self._landed = self._landed, True
        self._changed.notify_all()

    def _drop_queue(self) -> None:
        dropped = [item for item in self._queue if isinstance(item, WriteJob)]
        for job in dropped:
            self._queue.remove(job)
            self._settle(landed=False)
        if dropped:
            self._counters.add(write_errors=len(dropped))

    def _settle(self, *, landed: bool) -> None:
        self._num_jobs -= 1
        self._landed = self._landed and landed
        self._changed.notify_all()

    def _next_job(self) -> WriteJob | None:
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, WriteJob):
                return item
            self._answer(item)
        self._ended = self._closed
        return None

    # -- on the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            self._serve()

    def _serve(self) -> None:
        """Wait for one object and write it.

        A separate function, so that a waiting thread keeps no reference to the last object.
        """
        with self._changed:
            woken = self._changed.wait_for(lambda: self._queue or self._closed, IDLE_S)
            job = self._next_job()
        if job is not None:
            landed = self._write(job)
            del job
            with self._changed:
                self._settle(landed=landed)
        elif not woken:
            self._flush_touches()

    def _write(self, job: WriteJob) -> bool:
        try:
            parts = job.encode()
            outcome = self._store.write(job.name, parts, job.stamp_ns)
        except Exception as error:  # noqa: BLE001  a boundary: later writes may succeed
            self._counters.add(write_errors=1)
            self._report(error)
            return False
        if outcome is WriteOutcome.WRITTEN:
            num_bytes = sum(memoryview(part).nbytes for part in parts)
            self._counters.add(bytes_written=num_bytes)
        elif outcome is not WriteOutcome.PRESENT:
            self.last_refusal = outcome
            self.num_refusals += 1
            self._counters.add(write_errors=1)
        return outcome in _LANDED

    def _flush_touches(self) -> None:
        try:
            self._store.flush_touches()
        except Exception as error:  # noqa: BLE001  a boundary: only eviction order suffers
            self._report(error)

    def _report(self, error: Exception) -> None:
        kind = (type(error).__qualname__, getattr(error, "errno", None))
        if kind not in _reported:
            _reported.add(kind)
            with suppress(Exception):  # a failing log must not end the thread
                self._log.warning("coldtier.write.failed", error=repr(error))
