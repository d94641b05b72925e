from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.keys import ColdChain, ObjectName
from neve.coldtier.transfer.capture import STAMP_STEP_NS, Capture, CaptureBudget, StopReason
from neve.coldtier.transfer.writer import WriteJob
from neve.ids import ColdKey, Fingerprint

STAMP_NS = 10**18


def make_names(count: int) -> list[ObjectName]:
    return [ObjectName(ColdKey(i.to_bytes(32, "big"))) for i in range(count)]


@attrs.define(eq=False)
class FakeSource:
    """A chain's blocks in memory; what was read of them.

    Attributes:
        held: Leading blocks that memory still holds.
        reads: `(first, count)` of every read.
    """

    held: int = 10**6
    reads: list[tuple[int, int]] = attrs.field(factory=list)

    def read(self, first, count):
        self.reads.append((first, count))
        return [[memoryview(b"%d" % i)] for i in range(first, min(first + count, self.held))]


@attrs.define(eq=False)
class FakeDisk:
    """Index and queue in one: what was offered is known once it was written.

    Attributes:
        names: Objects on disk.
        free_slots: Places of the queue.
        jobs: What took one, in order.
    """

    names: set[ObjectName] = attrs.field(factory=set)
    free_slots: int = 8
    jobs: list[WriteJob] = attrs.field(factory=list)
    closed: bool = False

    def contains(self, name):
        return name in self.names

    def offer(self, job):
        if self.closed or not self.free_slots:
            return False
        self.free_slots -= 1
        self.jobs.append(job)
        return True

    def write_all(self) -> None:
        """Do the writer's work: everything lands, the queue is empty."""
        self.names |= {job.name for job in self.jobs}
        self.free_slots = 8

    @property
    def offered(self) -> list[ObjectName]:
        return [job.name for job in self.jobs]


def make_capture(num_blocks=5, source=None, *, blocks=100, seconds=1.0) -> Capture:
    def encode(index, pages):
        return lambda: [memoryview(b"block %d: " % index), *pages]

    return Capture(
        ColdChain(Fingerprint(bytes(32)), 4),
        make_names(num_blocks),
        source or FakeSource(),
        encode,
        CaptureBudget(blocks, seconds),
        STAMP_NS,
    )


def run(capture: Capture, disk: FakeDisk, max_blocks: int = 100) -> StopReason:
    """Go on until the walk ends, the writer keeping up."""
    for _ in range(1000):
        capture.advance(disk, disk, max_blocks)
        if capture.stop is not None:
            return capture.stop
        disk.write_all()
    raise AssertionError("the walk does not end")


def test_whole_chain_is_written_head_first():
    """CT-6: a walk within its budget hands over every block, in order, and is complete."""
    capture, disk = make_capture(20), FakeDisk()

    assert run(capture, disk) is StopReason.COMPLETE
    assert disk.offered == make_names(20)
    assert (capture.written, capture.already, capture.reach) == (20, 0, 20)


def test_jobs_encode_their_own_block():
    """CT-6: each object is made of the pages that belong to its name."""
    capture, disk = make_capture(3), FakeDisk()
    run(capture, disk, max_blocks=2)

    files = [b"".join(job.encode()) for job in disk.jobs]
    assert files == [b"block %d: %d" % (i, i) for i in range(3)]


def test_stamps_make_leaves_older():
    """CT-7: a block is older than its parent, so that the chain is evicted from its end."""
    capture, disk = make_capture(4), FakeDisk(names={make_names(4)[1]})
    run(capture, disk)

    assert [job.stamp_ns for job in disk.jobs] == [
        STAMP_NS - STAMP_STEP_NS * i for i in (0, 2, 3)
    ]


def test_persisted_blocks_are_free():
    """CT-6: the budget counts blocks that are written; walking over others costs nothing."""
    capture = make_capture(300, source := FakeSource(), blocks=3)
    disk = FakeDisk(names=set(make_names(250)))

    assert run(capture, disk) is StopReason.BUDGET
    assert (capture.already, capture.written) == (250, 3)
    assert disk.offered == make_names(253)[250:]
    assert all(first >= 250 for first, _ in source.reads)


def test_persisted_blocks_between_are_free_too():
    """CT-6: a walk fills holes; what lies between them is neither read nor counted."""
    names = make_names(6)
    capture = make_capture(6, source := FakeSource(), blocks=3)
    disk = FakeDisk(names={names[1], names[2], names[4]})

    assert run(capture, disk) is StopReason.COMPLETE
    assert disk.offered == [names[0], names[3], names[5]]
    assert source.reads == [(0, 1), (3, 1), (5, 1)]
    assert (capture.written, capture.already) == (3, 3)


def test_persisted_chain_is_complete_at_once():
    """CT-6: the second turn over a prefix reads nothing."""
    capture = make_capture(5, source := FakeSource(), blocks=0, seconds=0.0)

    assert run(capture, FakeDisk(names=set(make_names(5)))) is StopReason.COMPLETE
    assert source.reads == []


def test_budget_ends_where_the_chain_does():
    """CT-6: a walk that needs exactly its budget is complete."""
    assert run(make_capture(5, blocks=5), FakeDisk()) is StopReason.COMPLETE
    assert run(make_capture(5, blocks=4), FakeDisk()) is StopReason.BUDGET


def test_no_budget_writes_nothing():
    """CT-6: a budget of no blocks, or of no time, switches capture off."""
    for capture, reason in (
        (make_capture(blocks=0), StopReason.BUDGET),
        (make_capture(seconds=0.0), StopReason.DEADLINE),
    ):
        disk = FakeDisk()

        assert run(capture, disk) is reason
        assert disk.jobs == []


def test_full_queue_is_waited_for():
    """CT-6: no place is no reason to stop; nothing is read meanwhile."""
    capture = make_capture(10, source := FakeSource())
    disk = FakeDisk(free_slots=3)
    capture.advance(disk, disk, 100)
    capture.advance(disk, disk, 100)

    assert (capture.stop, capture.written, source.reads) == (None, 3, [(0, 3)])
    disk.free_slots = 2
    capture.advance(disk, disk, 100)
    assert source.reads == [(0, 3), (3, 2)]


def test_portion_is_bounded():
    """CT-6: beside other turns a walk goes on in small portions."""
    capture, disk = make_capture(10, source := FakeSource()), FakeDisk()
    capture.advance(disk, disk, 4)

    assert (source.reads, capture.written) == ([(0, 4)], 4)


def test_deadline_ends_the_walk():
    """CT-6: time that is spent writing or waiting ends it; nothing is read after that."""
    capture, disk = make_capture(10, source := FakeSource(), seconds=0.25), FakeDisk()
    capture.advance(disk, disk, 4)
    capture.spent_s = 0.25
    capture.advance(disk, disk, 4)

    assert (capture.stop, capture.written) == (StopReason.DEADLINE, 4)
    assert source.reads == [(0, 4)]


def test_deadline_ends_the_wait_for_a_place():
    """CT-6: a disk that does not keep up costs no more than the budget."""
    capture, disk = make_capture(10), FakeDisk(free_slots=0)
    capture.advance(disk, disk, 4)
    assert capture.stop is None
    capture.spent_s = 1.0
    capture.advance(disk, disk, 4)

    assert (capture.stop, capture.written) == (StopReason.DEADLINE, 0)


def test_late_walk_that_has_nothing_left_is_complete():
    """CT-6: the deadline is for what there is still to write."""
    capture, disk = make_capture(8), FakeDisk()
    capture.advance(disk, disk, 4)
    disk.names |= set(make_names(8))
    capture.spent_s = 5.0
    capture.advance(disk, disk, 4)

    assert (capture.stop, capture.written) == (StopReason.COMPLETE, 4)


def test_first_block_that_is_gone_ends_the_walk():
    """CT-6: what memory has evicted cannot be written; what it gave before, is."""
    capture, disk = make_capture(10, FakeSource(held=6)), FakeDisk()

    assert run(capture, disk, max_blocks=4) is StopReason.EVICTED
    assert disk.offered == make_names(6)


def test_gone_block_is_not_skipped():
    """CT-6: a persisted block behind the gone one does not bring the walk back to life."""
    names = make_names(4)
    capture = make_capture(4, FakeSource(held=0))
    disk = FakeDisk(names={names[0], names[2]})

    assert run(capture, disk) is StopReason.EVICTED
    assert (capture.reach, disk.offered) == (1, [])


def test_refused_offer_ends_the_walk():
    """CT-6: a writer that is closed meanwhile takes nothing, and no later block either."""
    capture = make_capture(4)

    assert run(capture, FakeDisk(closed=True)) is StopReason.REFUSED
    assert capture.reach == 0


@given(
    length=st.integers(0, 12),
    persisted=st.sets(st.integers(0, 11)),
    blocks=st.integers(0, 12),
    held=st.integers(0, 12),
    looks=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 8), st.booleans(), st.floats(0, 0.5)),
        max_size=12,
    ),
)
def test_any_walk_writes_a_chain_without_a_hole(length, persisted, blocks, held, looks):
    """CT-6: whatever the queue, the budgets and memory do, what is reached has no hole."""
    names, source = make_names(12), FakeSource(held)
    capture = make_capture(length, source, blocks=blocks)
    disk = FakeDisk({names[i] for i in persisted})
    for max_blocks, slots, lands, seconds in looks:
        if capture.stop is not None:
            break
        if lands:
            disk.write_all()
        disk.free_slots, before = slots, len(source.reads)
        capture.advance(disk, disk, max_blocks)
        capture.spent_s += seconds
        assert all(count <= min(max_blocks, slots) for _, count in source.reads[before:])

    reached = {names[i] for i in persisted} | set(disk.offered)
    assert set(names[: capture.reach]) <= reached
    assert disk.offered == [n for n in names[: capture.reach] if n in set(disk.offered)]
    assert capture.written == len(disk.jobs) <= blocks
    if capture.stop is StopReason.COMPLETE:
        assert capture.reach == length
    if capture.stop is StopReason.BUDGET:
        assert capture.written == blocks
    if capture.stop is StopReason.EVICTED:
        assert capture.reach >= held
