"""The one thread that writes: a short queue in front of the store."""

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
_reported: set[tuple[str, int | None]] = set()  # (type, errno) that this process has logged


class Store(Protocol):
    """What the writer needs of a store."""

    def write(
        self, name: ObjectName, parts: Sequence[Buffer], stamp_ns: int, /
    ) -> WriteOutcome:
        """Make an object durable, or say why not."""
        ...

    def flush_touches(self) -> None:
        """Write down which objects were used."""
        ...


@attrs.frozen(eq=False)
class WriteJob:
    """An object that is to be written.

    Attributes:
        name: What it is called.
        encode: Makes the file's pieces, on the writer thread; what it refers to stays in
            memory until the object is written.
        stamp_ns: Its last use.
    """

    name: ObjectName
    encode: Callable[[], Sequence[Buffer]]
    stamp_ns: int


@attrs.define(eq=False)
class _Barrier:
    """A mark in the queue; `landed` is None until the writer has come to it."""

    landed: bool | None = None


class ColdWriter:
    """Writes objects one after the other, on a thread of its own.

    Offers never wait for the disk unless they are told to, and no error reaches who offered:
    it is counted, and logged the first time. The queue bounds memory and nothing else: an
    object holds its place until its bytes are let go, the one that is being written included.

    Attributes:
        last_refusal: Why the store last refused an object, None if it never has.
        num_refusals: How many it has refused.
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
        self._num_jobs = 0  # in the queue and in the thread's hands
        self._landed = True  # all writes since the last barrier
        self._closed = False  # takes no more jobs
        self._ended = False  # answers no more barriers
        self._changed = threading.Condition()
        self._log = get_logger("coldtier")
        self._thread = threading.Thread(target=self._run, name="neve-cold-writer", daemon=True)
        self._thread.start()

    @property
    def free_slots(self) -> int:
        """Objects that an offer would take now."""
        with self._changed:
            return 0 if self._closed else self._depth - self._num_jobs

    def offer(self, job: WriteJob) -> bool:
        """Give an object to the thread, or drop it if the queue is full or closed."""
        return self.offer_before(job, 0.0)

    def offer_before(self, job: WriteJob, deadline: float) -> bool:
        """Give an object to the thread, waiting for a place if there is none.

        Args:
            job: The object.
            deadline: When to drop it instead, on the clock of `time.monotonic`.

        Returns:
            Whether it has a place. That it landed on the disk, only `drain` tells.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._num_jobs < self._depth,
                max(0.0, deadline - time.monotonic()),
            )
            admitted = not self._closed and self._num_jobs < self._depth
            # counted before the thread can see it, so that no error precedes its object
            self._count_offer(job.name, "enqueued" if admitted else "queue_drops")
            if admitted:
                self._num_jobs += 1
                self._queue.append(job)
                self._changed.notify_all()
        return admitted

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything that was enqueued before this call is done.

        A drain that ran out of time is no barrier: the next one answers for its writes too.

        Returns:
            Whether every write since the barrier before landed, and in time.
        """
        with self._changed:
            return self._await_barrier(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Take no more objects, drain, and end the thread.

        What is still in the queue after `timeout_s` is dropped and counts as write errors.
        The thread outlives this call if the disk does not answer.

        Returns:
            What `drain` would have.
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
        self._queue.append(barrier)  # takes no place: it is admitted at once
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

        A function of its own, so that while the thread waits nothing refers to the last one.
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
        except Exception as error:  # noqa: BLE001  a door: the next object may fare better
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
        except Exception as error:  # noqa: BLE001  a door: only the order of eviction suffers
            self._report(error)

    def _report(self, error: Exception) -> None:
        kind = (type(error).__qualname__, getattr(error, "errno", None))
        if kind not in _reported:
            _reported.add(kind)
            with suppress(Exception):  # a log that can't be written must not end the thread
                self._log.warning("coldtier.write.failed", error=repr(error))
