from __future__ import annotations

import errno
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.stats import Counters
from neve.coldtier.store.store import WriteOutcome
from neve.coldtier.transfer import writer as writer_module
from neve.coldtier.transfer.writer import ColdWriter, WriteJob
from neve.errors import ObjectRejectedError
from neve.ids import ColdKey

SECONDS = 20.0  # none of the tests takes that long unless something is stuck


class FakeStore:
    """A store that writes nothing, does what it is told, and can be held up."""

    def __init__(self) -> None:
        self.answers: dict[ObjectName, WriteOutcome | Exception] = {}
        self.written: list[tuple[ObjectName, bytes, int]] = []
        self.flushed = threading.Event()
        self.flush_error: Exception | None = None
        self.busy = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def write(self, name, parts, stamp_ns):
        self.busy.set()
        assert self.go_on.wait(SECONDS)
        answer = self.answers.get(name, WriteOutcome.WRITTEN)
        if isinstance(answer, Exception):
            raise answer
        self.written.append((name, b"".join(parts), stamp_ns))
        return answer

    def flush_touches(self):
        self.flushed.set()
        if self.flush_error is not None:
            raise self.flush_error


def name_of(index: int, group: ColdGroup = ColdGroup.KV) -> ObjectName:
    return ObjectName(ColdKey(index.to_bytes(32, "big")), group)


def job_of(index: int, group: ColdGroup = ColdGroup.KV, size: int = 10) -> WriteJob:
    return WriteJob(name_of(index, group), lambda: [b"head", bytes(size - 4)], index)


def soon() -> float:
    return time.monotonic() + SECONDS


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def make(store: FakeStore, counters: Counters) -> Iterator[Callable[..., ColdWriter]]:
    """Start writers on the fake store; they are ended with the test."""
    writers: list[ColdWriter] = []

    def start(depth: int = 8) -> ColdWriter:
        writers.append(ColdWriter(store, counters, depth))
        return writers[-1]

    yield start
    store.go_on.set()
    for writer in writers:
        writer.close(SECONDS)


def hold(store: FakeStore, writer: ColdWriter) -> None:
    """Keep the thread inside the write of one object."""
    store.go_on.clear()
    store.busy.clear()
    assert writer.offer(job_of(1000))
    assert store.busy.wait(SECONDS)


def test_objects_are_written_in_the_order_of_their_offers(make, store, counters):
    """CT-5: one thread writes what it is given, in order; the counts follow."""
    writer = make()
    for i in range(5):
        assert writer.offer_before(job_of(i, size=100), soon())

    assert writer.drain(SECONDS)
    assert [(name, stamp) for name, _, stamp in store.written] == [
        (name_of(i), i) for i in range(5)
    ]
    assert store.written[0][1] == b"head" + bytes(96)
    stats = counters.cache()
    assert (stats.enqueued, stats.queue_drops, stats.write_errors) == (5, 0, 0)
    assert stats.bytes_written == 500


def test_encoding_happens_on_the_writer_thread(make):
    """CT-5: who offers an object pays neither for its checksum nor for the disk."""
    threads: list[threading.Thread] = []

    def encode() -> list[bytes]:
        threads.append(threading.current_thread())
        return [b"x"]

    writer = make()
    writer.offer(WriteJob(name_of(0), encode, 0))

    assert writer.drain(SECONDS)
    assert [thread.name for thread in threads] == ["neve-cold-writer"]
    assert threads[0].daemon


def test_full_queue_refuses_at_once(make, store, counters):
    """CT-5: the queue holds eight objects, the one being written included; more are dropped."""
    writer = make()
    hold(store, writer)

    assert writer.free_slots == 7
    assert [writer.offer(job_of(i)) for i in range(9)] == [True] * 7 + [False] * 2
    assert writer.free_slots == 0
    assert (counters.cache().enqueued, counters.cache().queue_drops) == (8, 2)
    store.go_on.set()
    assert writer.drain(SECONDS)
    assert len(store.written) == writer.free_slots == 8


def test_sidecars_count_twice_and_blocks_once(make, store, counters):
    """TE-1: the sidecars' enqueued and queue_drops are part of the tier's."""
    writer = make(depth=3)
    hold(store, writer)
    groups = [ColdGroup.GDN_STATE, ColdGroup.KV, ColdGroup.SSM_STATE, ColdGroup.KV]
    answers = [writer.offer(job_of(i, group)) for i, group in enumerate(groups)]

    assert answers == [True, True, False, False]
    tier, sidecar = counters.cache(), counters.sidecar()
    assert (tier.enqueued, tier.queue_drops) == (3, 2)
    assert (sidecar.enqueued, sidecar.queue_drops) == (1, 1)


def test_an_offer_with_a_deadline_waits_for_a_place(make, store, counters):
    """CT-6: a full queue is no stop as long as there is time."""
    writer = make(depth=1)
    hold(store, writer)
    threading.Timer(0.05, store.go_on.set).start()

    assert writer.offer_before(job_of(1), soon())
    assert writer.drain(SECONDS)
    assert [name for name, *_ in store.written] == [name_of(1000), name_of(1)]
    assert counters.cache().queue_drops == 0


@pytest.mark.parametrize("left_s", [-1.0, 0.0, 0.05])
def test_an_offer_gives_up_at_its_deadline(make, store, counters, left_s):
    """CT-6: at the deadline the object is dropped and counted; one gone by asks once."""
    writer = make(depth=1)
    hold(store, writer)
    deadline = time.monotonic() + left_s

    assert not writer.offer_before(job_of(1), deadline)
    assert time.monotonic() >= deadline
    assert counters.cache().queue_drops == 1


def test_a_past_deadline_still_takes_a_free_place(make):
    """CT-6: a deadline only bounds the waiting."""
    writer = make()

    assert writer.offer_before(job_of(1), time.monotonic() - 1.0)


@pytest.mark.parametrize(
    "outcome", [WriteOutcome.QUOTA, WriteOutcome.FREE_SPACE, WriteOutcome.DAILY_LIMIT]
)
def test_what_the_store_refuses_is_an_error_with_a_reason(make, store, counters, outcome):
    """CT-7: a refused object is a write error, and the reason is kept."""
    writer = make()
    store.answers[name_of(1)] = outcome
    writer.offer(job_of(1))
    writer.offer(job_of(2))

    assert writer.last_refusal is None or writer.last_refusal is outcome
    assert not writer.drain(SECONDS)
    assert (writer.last_refusal, writer.num_refusals) == (outcome, 1)
    stats = counters.cache()
    assert (stats.enqueued, stats.write_errors, stats.bytes_written) == (2, 1, 10)


def test_what_is_there_already_has_landed(make, store, counters):
    """CT-5: an object that the store had is no error, and no bytes were written."""
    store.answers[name_of(1)] = WriteOutcome.PRESENT
    writer = make()
    writer.offer(job_of(1))

    assert writer.drain(SECONDS)
    assert (counters.cache().write_errors, counters.cache().bytes_written) == (0, 0)


@pytest.fixture
def _nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_reported", set())


@pytest.mark.usefixtures("_nothing_reported")
def test_errors_are_counted_each_and_logged_once_a_kind(make, store, counters, logged):
    """CT-7: no error ends the thread; each counts, and each kind is logged once."""
    errors = [
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EIO, "broken"),
        OSError(errno.ENOSPC, "full"),
        ObjectRejectedError("layout", "two pieces are missing"),
        ZeroDivisionError(),
        MemoryError(),
        ZeroDivisionError(),
    ]
    writer = make()
    for i, error in enumerate(errors):
        store.answers[name_of(i)] = error
        writer.offer(job_of(i))
    writer.offer(job_of(len(errors)))

    assert not writer.drain(SECONDS)
    assert [name for name, *_ in store.written] == [name_of(len(errors))]
    assert counters.cache().write_errors == len(errors)
    assert [event["event"] for event in logged] == ["coldtier.write.failed"] * 5
    assert "full" in logged[0]["error"]
    assert (writer.last_refusal, writer.num_refusals) == (None, 0)


@pytest.mark.usefixtures("_nothing_reported")
def test_an_object_that_cannot_be_encoded_is_an_error(make, store, counters, logged):
    """CT-7: encode may raise as well; the next object is written."""

    def encode() -> list[bytes]:
        raise ValueError("1 piece, 3 are needed")

    writer = make()
    writer.offer(WriteJob(name_of(0), encode, 0))
    writer.offer(job_of(1))

    assert not writer.drain(SECONDS)
    assert counters.cache().write_errors == len(logged) == len(store.written) == 1


@pytest.mark.usefixtures("_nothing_reported")
def test_a_log_that_fails_does_not_end_the_thread(make, store, counters, monkeypatch):
    """CT-7: with stderr gone the thread goes on."""
    writer = make()
    monkeypatch.setattr(writer, "_log", None)
    store.answers[name_of(0)] = OSError(errno.EIO, "broken")
    writer.offer(job_of(0))
    writer.offer(job_of(1))

    assert not writer.drain(SECONDS)
    assert (counters.cache().write_errors, len(store.written)) == (1, 1)


def test_drain_tells_of_the_writes_since_the_drain_before(make, store):
    """CT-5: a failed write fails the drain behind it, and only that one."""
    store.answers[name_of(1)] = OSError(errno.EIO, "broken")
    writer = make()
    assert writer.drain(SECONDS)
    for i in range(3):
        writer.offer(job_of(i))
    answers = [writer.drain(SECONDS)]
    writer.offer(job_of(3))
    answers += [writer.drain(SECONDS), writer.drain(SECONDS)]

    assert answers == [False, True, True]


def test_drain_does_not_wait_for_later_offers(make, store):
    """CT-5: a drain answers for what was enqueued before it."""
    writer = make()
    hold(store, writer)
    answers: list[bool] = []
    drain = threading.Thread(target=lambda: answers.append(writer.drain(SECONDS)))
    drain.start()
    while len(writer._queue) < 1:
        time.sleep(0.001)
    store.answers[name_of(2)] = OSError(errno.EIO, "broken")
    writer.offer(job_of(2))
    store.go_on.set()
    drain.join(SECONDS)

    assert answers == [True]
    assert not writer.drain(SECONDS)


def test_a_drain_out_of_time_is_no_barrier(make, store):
    """CT-5: the deadline covers everything; the next drain answers for the writes instead."""
    writer = make()
    hold(store, writer)
    store.answers[name_of(1)] = OSError(errno.EIO, "broken")
    writer.offer(job_of(1))

    assert not writer.drain(0.02)
    store.go_on.set()
    assert not writer.drain(SECONDS)
    assert writer.drain(SECONDS)


def test_drain_with_a_full_queue_keeps_its_deadline(make, store):
    """CT-5: a barrier needs no place, so a full queue does not keep it out."""
    writer = make(depth=1)
    hold(store, writer)

    assert not writer.drain(0.02)
    store.go_on.set()
    assert writer.drain(SECONDS)


def test_close_writes_what_is_waiting_and_ends_the_thread(make, store, counters):
    """CT-5: nothing that was taken is lost in an orderly end; afterwards all is refused."""
    writer = make()
    for i in range(8):
        writer.offer(job_of(i))

    assert writer.close(SECONDS)
    assert len(store.written) == 8
    assert not writer._thread.is_alive()
    assert not writer.offer_before(job_of(9), soon())
    assert (counters.cache().enqueued, counters.cache().queue_drops) == (8, 1)
    assert writer.free_slots == 0
    assert writer.drain(0.0)
    assert writer.close(0.0)


def test_close_drops_what_it_has_no_time_for(make, store, counters):
    """CT-5: what is left at the deadline counts as write errors."""
    writer = make()
    hold(store, writer)
    for i in range(3):
        writer.offer(job_of(i))

    assert not writer.close(0.02)
    assert counters.cache().write_errors == 3
    store.go_on.set()
    writer._thread.join(SECONDS)
    assert [name for name, *_ in store.written] == [name_of(1000)]
    assert not writer.drain(SECONDS)
    stats = counters.cache()
    assert (stats.enqueued, stats.write_errors) == (4, 3)


def test_close_refuses_who_waits_for_a_place(make, store, counters):
    """CT-6: an offer that waits learns of the end at once."""
    writer = make(depth=1)
    hold(store, writer)
    answers: list[bool] = []
    offer = threading.Thread(
        target=lambda: answers.append(writer.offer_before(job_of(1), soon()))
    )
    offer.start()
    writer.close(0.05)
    offer.join(SECONDS)

    assert answers == [False]
    assert counters.cache().queue_drops == 1


def test_an_idle_thread_writes_down_the_uses(make, store, monkeypatch):
    """CT-7: the order of eviction reaches the disk when there is nothing else to write."""
    monkeypatch.setattr(writer_module, "IDLE_S", 0.01)
    writer = make()

    assert store.flushed.wait(SECONDS)
    store.flush_error = OSError(errno.EROFS, "read-only")
    store.flushed.clear()
    assert store.flushed.wait(SECONDS)
    assert writer.offer(job_of(0))
    assert writer.drain(SECONDS)


def test_a_written_object_is_let_go(make):
    """CT-5: while it waits, the thread holds no object's bytes."""

    class Block:
        def encode(self) -> list[bytes]:
            return [b"x"]

    block = Block()
    alive = weakref.ref(block)
    writer = make()
    writer.offer(WriteJob(name_of(0), block.encode, 0))
    del block
    assert writer.drain(SECONDS)
    gc.collect()

    assert alive() is None


def test_a_queue_without_a_place_is_refused(store, counters):
    """A depth below one is a mistake of the caller."""
    with pytest.raises(ValueError, match="at least one place"):
        ColdWriter(store, counters, 0)


@given(
    plans=st.lists(
        st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12),
        min_size=2,
        max_size=4,
    ),
    depth=st.integers(1, 4),
)
def test_every_offer_of_many_producers_is_counted_once(plans, depth):
    """TE-1: offers = enqueued + drops; enqueued = landed + errors; each producer's in order."""
    store, counters = FakeStore(), Counters()
    writer = ColdWriter(store, counters, depth)
    taken: list[list[ObjectName]] = [[] for _ in plans]

    def produce(i: int) -> None:
        for j, (fails, patient, sidecar) in enumerate(plans[i]):
            group = ColdGroup.CONV_STATE if sidecar else ColdGroup.KV
            job = job_of(100 * i + j, group)
            if fails:
                store.answers[job.name] = OSError(errno.EIO, "broken")
            admitted = writer.offer_before(job, soon()) if patient else writer.offer(job)
            if admitted:
                taken[i].append(job.name)

    threads = [threading.Thread(target=produce, args=(i,)) for i in range(len(plans))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    landed = writer.close(SECONDS)
    written = [name for name, *_ in store.written]
    admitted = [name for names in taken for name in names]
    tier, sidecar = counters.cache(), counters.sidecar()

    assert tier.enqueued == len(admitted)
    assert tier.enqueued + tier.queue_drops == sum(map(len, plans))
    assert tier.enqueued == len(written) + tier.write_errors
    assert landed == (tier.write_errors == 0)
    assert tier.bytes_written == 10 * len(written)
    assert sidecar.enqueued == sum(name.group is not ColdGroup.KV for name in admitted)
    for names in taken:
        expected = [name for name in names if name not in store.answers]
        assert [name for name in written if name in set(expected)] == expected
