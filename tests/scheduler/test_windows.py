"""The scheduler over two groups, one of them with a window, and a device that checks reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from neve.contract.cache_spec import FullAttention, SlidingWindow, layer_routes
from neve.errors import ContextLengthExceededError
from neve.ids import RequestId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.resident import Resident
from neve.kvcache.state_keeper import KeptState
from neve.scheduler.cold_port import RestoreProgress
from neve.scheduler.plan import PlannedRow, StepPlan
from neve.scheduler.request import Request, RequestStatus
from neve.scheduler.scheduler import Scheduler
from neve.settings import SchedulerSettings

SIZE, WINDOW, SLICE = 4, 10, 16
SPEC = SlidingWindow(WINDOW, 1, 8)
LAYOUT = layer_routes([FullAttention(1, 8), SPEC])
FULL, SLIDING = range(2)
RESIDENT = Resident.of(SPEC, SIZE, SLICE)
assert RESIDENT is not None
LEAST = RESIDENT.least
"""Blocks of a window's pool in which a sequence of any length can run alone."""

PROMPT = list(range(1, 42))  # ten blocks and a token
WAITS = RequestStatus.WAITING_FOR_SSD


class Device:
    """Computes plans in the order in which they are made, and looks at what rows read.

    A slot says what it holds: a salt and all tokens up to a position. Each token of a row must
    find the content of its own past wherever its layers look.
    """

    def __init__(self, requests: dict[int, Request]) -> None:
        self.requests = requests
        self.slots: dict[tuple[int, int, int], int] = {}
        self.texts: dict[RequestId, list[int]] = {}  # with tokens that the host has not read

    def compute(self, plan: StepPlan, sample: Callable[[list[int]], int]) -> None:
        for row in plan.rows:
            request = self.requests[row.request]
            if request.id not in self.texts or not request.num_in_flight:
                self.texts[request.id] = list(request.tokens)
            self.write(request, row.position, row.end)
        for row in plan.rows:
            self._verify(row)
            if row.samples:
                self.texts[row.request].append(sample(self.texts[row.request]))

    def write(self, request: Request, first: int, end: int) -> None:
        """Write positions `[first, end)` of a request's sequence in every group."""
        contents = self._contents(request, end)
        for group, table in enumerate(request.sequence.tables):
            for position in range(first, end):
                block = table.blocks[position // SIZE]
                assert block.id, "nothing is written to the null block"
                self.slots[group, block.id, position % SIZE] = contents[position]

    def write_blocks(self, request: Request, group: int, ids: list[int], first: int) -> None:
        """Write a request's blocks from `first` on, as a restore does."""
        contents = self._contents(request, (first + len(ids)) * SIZE)
        for index, block_id in enumerate(ids, first):
            for offset in range(SIZE):
                self.slots[group, block_id, offset] = contents[index * SIZE + offset]

    def _contents(self, request: Request, end: int) -> list[int]:
        """Return what each position of a request's text holds: a hash of all up to there."""
        contents = [hash(("salt", request.salt))]
        for token in self.texts.get(request.id, request.tokens)[:end]:
            contents.append(hash((contents[-1], token)))
        return contents[1:]

    def _verify(self, row: PlannedRow) -> None:
        request = self.requests[row.request]
        contents = self._contents(request, row.end)
        for group, (spec, table) in enumerate(
            zip(LAYOUT.groups, request.sequence.tables, strict=True)
        ):
            oldest = spec.first_visible(row.position)
            for position in range(oldest, row.end):
                block = table.blocks[position // SIZE]
                held = self.slots.get((group, block.id, position % SIZE))
                assert held == contents[position], "a token sees its own past"


@attrs.define
class Restore:
    """A restore on its way, in blocks; it ends at `boundary`, once that is known."""

    first: int
    end: int
    boundary: int | None = None


@attrs.define(eq=False)
class Disk:
    """A disk that holds blocks and windows, and gives them when it is told to.

    Attributes:
        cache: Where it restores to.
        device: What writes.
        stored: Texts whose full blocks it holds, whatever the salt.
        every: Each so many blocks there is a window.
        eager: Whether all arrives at once.
    """

    cache: Coordinator
    device: Device
    stored: list[list[int]] = attrs.field(factory=list)
    every: int = 1
    eager: bool = False
    proposed: dict[RequestId, Restore] = attrs.field(factory=dict)
    restores: dict[RequestId, Restore] = attrs.field(factory=dict)

    def propose(self, request: Request, hit_length: int) -> int:
        first, limit = hit_length // SIZE, (len(request.tokens) - 1) // SIZE
        held = [min(limit, num_common(text, request.tokens) // SIZE) for text in self.stored]
        end = max(held, default=0) // self.every * self.every
        if end <= first:
            return 0
        self.proposed[request.id] = Restore(first, end)
        return (end - first) * SIZE

    def begin(self, request: Request) -> None:
        self.restores[request.id] = self.proposed.pop(request.id)
        if self.eager:
            self.arrive(request)

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Give all or nothing: blocks are of no use before the window at their end is there."""
        restore = self.restores[request.id]
        if restore.boundary is None:
            return RestoreProgress(0, False)
        del self.restores[request.id]
        first, end = restore.first, restore.boundary
        if end <= first:
            return RestoreProgress(0, True)
        ids = request.sequence.tables[FULL].ids[first:end]
        self.device.write_blocks(request, FULL, ids, first)
        assert self.cache.kinds.windows is not None
        ids = self.cache.kinds.windows.install(request.sequence, end * SIZE)[SLIDING]
        self.device.write_blocks(request, SLIDING, list(ids), end - len(ids))
        return RestoreProgress((end - first) * SIZE, True, KeptState(end * SIZE, None))

    def cancel(self, request: Request) -> None:
        self.proposed.pop(request.id, None)
        self.restores.pop(request.id, None)

    def spill(self, request: Request) -> bool:
        return False

    def arrive(self, request: Request, lost: int = 0) -> None:
        """Have a restore end; the deepest `lost` windows are unsound."""
        restore = self.restores[request.id]
        restore.boundary = max(restore.first, restore.end - lost * self.every)


def num_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


Make = Callable[..., tuple[Any, Disk]]


@pytest.fixture
def make(make_bench, expected_tokens) -> Make:
    """Return a builder of a bench over two groups, and of its disk."""

    def sample(text: list[int]) -> int:
        return expected_tokens(text, 1)[-1]

    def build(num_blocks=64, window_blocks=64, stored=(), **given: Any):
        bench = make_bench()
        device = Device(bench.requests)
        allocators = [BlockAllocator(n + 1, SIZE) for n in (num_blocks, window_blocks)]
        bench.cache = Coordinator(LAYOUT, allocators, max_slice=SLICE)
        disk = Disk(bench.cache, device, [list(text) for text in stored])
        options: dict[str, Any] = {"max_batched_tokens": SLICE, "watermark_fraction": 0.0}
        bench.scheduler = Scheduler(
            SchedulerSettings(**(options | given)),
            bench.cache,
            max_context=512,
            block_size=SIZE,
            cold=disk,
        )
        plan = bench.scheduler.plan

        def planned() -> StepPlan:
            made = plan()
            device.compute(made, sample)
            return made

        bench.scheduler.plan = planned
        return bench, disk

    return build


def live(bench) -> tuple[int, ...]:
    """Return the blocks that sequences hold in each group."""
    return tuple(group.num_live for group in bench.cache.stats().groups)


def step_until(bench, condition: Callable[[], object]) -> None:
    for _ in range(500):
        if condition():
            return
        bench.step()
    raise AssertionError("it does not come to that")


def finish_all(bench, disk) -> None:
    """Let the disk give all that it has, and step until everything has ended."""
    disk.eager = True
    for request in bench.scheduler.requests:
        if request.id in disk.restores:
            disk.arrive(request)
    bench.run()


# -- admission -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_blocks", "window_blocks", "admitted"), [(64, 64, 2), (12, 64, 1), (64, 12, 1)]
)
def test_a_turn_is_admitted_if_every_group_has_room(
    make, expected_tokens, num_blocks, window_blocks, admitted
):
    """SC-2, GR-4: the group that has least decides, whichever it is."""
    bench, _ = make(num_blocks, window_blocks)
    prompts = [[100 + i for i in range(32)], [200 + i for i in range(32)]]
    requests = [bench.submit(prompt, max_tokens=8) for prompt in prompts]
    for _ in range(4):
        bench.step()
    stats = bench.scheduler.stats()

    assert stats.admitted == admitted
    assert (stats.admission_deferred_blocks > 0) == (admitted == 1)
    bench.run()
    assert bench.scheduler.stats().preemptions == 0
    assert [t.tokens for t in requests] == [expected_tokens(p, 8) for p in prompts]


def test_a_prompt_may_be_longer_than_the_windows_pool(make, expected_tokens):
    """GR-3, GR-4: a window's pool bounds what is in flight, not how long a request may be."""
    bench, _ = make(64, LEAST)
    prompt = list(range(1, 201))
    request = bench.submit(prompt, max_tokens=40)
    bench.run()

    assert request.tokens == expected_tokens(prompt, 40)
    assert request.preemptions == 0
    with pytest.raises(ContextLengthExceededError, match="cache"):
        bench.submit(list(range(64 * SIZE + 1)))


def test_a_windows_pool_that_is_too_small_bounds_the_prompt(make):
    """GR-4: where not even one slice has room beside its window, the whole must fit."""
    bench, _ = make(64, LEAST - 1)

    with pytest.raises(ContextLengthExceededError, match="cache"):
        bench.submit(list(range((LEAST - 1) * SIZE + 1)))


def test_the_watermark_is_kept_in_every_group(make):
    """SC-2: beside others a request leaves a share of each group's blocks free."""
    admitted: dict[float, int] = {}
    for fraction in (0.0, 0.5):
        bench, _ = make(64, 16, watermark_fraction=fraction)
        for i in range(2):
            bench.submit([100 * i + j for j in range(26)], max_tokens=8)
        for _ in range(3):
            bench.step()
        admitted[fraction] = bench.scheduler.stats().admitted
        bench.run()

    assert admitted == {0.0: 2, 0.5: 1}


def test_long_rows_hold_a_window_each(make, expected_tokens):
    """GR-3: rows that decode for long keep their window and no more; nobody is preempted."""
    bench, _ = make(256, 4 * 5, max_num_seqs=4)
    prompts = [[10 * i + j for j in range(6)] for i in range(1, 5)]
    requests = [bench.submit(prompt, max_tokens=120) for prompt in prompts]
    most = 0
    while any(request.status is not RequestStatus.FINISHED for request in requests):
        bench.step()
        most = max(most, live(bench)[SLIDING])

    assert bench.scheduler.stats().preemptions == 0
    assert most <= 4 * (-(-(WINDOW - 1 + 2) // SIZE) + 1)
    assert [t.tokens for t in requests] == [expected_tokens(p, 120) for p in prompts]


# -- preemption ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_blocks", "window_blocks"), [(64, LEAST), (14, 64)], ids=["window", "full"]
)
def test_a_victim_releases_every_group(make, expected_tokens, num_blocks, window_blocks):
    """GR-2, SC-3: whichever group is short, the newest request gives back all that it holds."""
    bench, _ = make(num_blocks, window_blocks, reserve_full_prompt=False, max_num_seqs=3)
    prompts = [[10 * i + j for j in range(5)] for i in range(1, 4)]
    requests = [bench.submit(prompt, max_tokens=30) for prompt in prompts]
    step_until(bench, lambda: requests[2].preemptions)

    assert requests[2].sequence is None
    assert requests[0].preemptions == 0
    held = [t.sequence.tables for t in requests if t.sequence is not None]
    assert live(bench) == tuple(sum(tables[g].num_held for tables in held) for g in range(2))
    bench.run()
    assert live(bench) == (0, 0)
    assert [t.tokens for t in requests] == [expected_tokens(p, 30) for p in prompts]


def test_a_preempted_turn_goes_on_from_its_window(make):
    """SC-3, GR-7: what it had published is found again in both groups."""
    bench, _ = make(12, 64)
    bench.submit(list(range(1, 9)), max_tokens=20)
    new = bench.submit(list(range(50, 66)), max_tokens=20)
    step_until(bench, lambda: new.preemptions)
    before = bench.cache.stats().prefix_hit_tokens
    bench.run()

    assert bench.cache.stats().prefix_hit_tokens > before


def test_turns_wait_for_a_prefix_in_the_making(make, expected_tokens):
    """GR-7: requests that arrive together compute their common prefix once, in both groups."""
    bench, _ = make(64, 64)
    prompts = [[*PROMPT, 100 + i] for i in range(4)]
    requests = [bench.submit(prompt, max_tokens=2) for prompt in prompts]
    bench.run()

    assert [t.cached_tokens for t in requests] == [0, 40, 40, 40]
    assert [t.tokens for t in requests] == [expected_tokens(p, 2) for p in prompts]


# -- restores ------------------------------------------------------------------------------


def test_a_restore_reserves_a_window_and_all_other_blocks(make, expected_tokens):
    """SD-1, SC-2: blocks of a window that will be jumped over are never asked for."""
    bench, disk = make(stored=[PROMPT])
    request = bench.submit(PROMPT, max_tokens=3)
    bench.step()
    assert request.status is WAITS
    assert live(bench) == (10, 3)  # the window at 40 begins in block 7

    disk.arrive(request)
    plan = bench.step()
    assert [(r.position, r.length) for r in plan.rows] == [(40, 1)]
    assert (request.cached_tokens, request.restored_tokens) == (40, 40)
    bench.run()
    assert request.tokens == expected_tokens(PROMPT, 3)


@pytest.mark.parametrize("lost", range(11))
def test_a_restore_may_end_anywhere_below(make, expected_tokens, lost):
    """SD-1: at whatever boundary a sound window is found, there it goes on; or from nothing."""
    bench, disk = make(stored=[PROMPT])
    request = bench.submit(PROMPT, max_tokens=3)
    bench.step()
    disk.arrive(request, lost)
    bench.step()
    boundary = (10 - lost) * SIZE

    assert (request.cached_tokens, request.restored_tokens) == (boundary, boundary)
    assert request.sequence.spare == {}
    bench.run()
    assert request.tokens == expected_tokens(PROMPT, 3)
    assert live(bench) == (0, 0)


@pytest.mark.parametrize("held", range(4, 41, 4))
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_restore_goes_on_behind_what_memory_holds(make, expected_tokens, held, lost):
    """CT-1, GR-7: a window that memory has in part is completed, and never overwritten."""
    bench, disk = make()
    bench.submit(PROMPT[: held + 1], max_tokens=1)
    bench.run()
    disk.stored.append(PROMPT)
    request = bench.submit(PROMPT, max_tokens=3)
    bench.step()
    if request.id in disk.restores:
        disk.arrive(request, lost)
    bench.run()

    assert request.cached_tokens == max(held, 40 - lost * SIZE)
    assert request.tokens == expected_tokens(PROMPT, 3)


def test_a_restored_window_is_hit_by_the_next_turn(make, expected_tokens):
    """GR-7, CT-11: a peer waits for it, and goes on from the same boundary."""
    bench, disk = make(stored=[PROMPT])
    prompts = [[*PROMPT, 60 + i] for i in range(3)]
    requests = [bench.submit(prompt, max_tokens=2) for prompt in prompts]
    for _ in range(3):
        bench.step()
    assert [t.status for t in requests] == [WAITS, RequestStatus.WAITING, RequestStatus.WAITING]

    finish_all(bench, disk)
    assert [t.restored_tokens for t in requests] == [40, 0, 0]
    assert [t.cached_tokens for t in requests] == [40, 40, 40]
    assert [t.tokens for t in requests] == [expected_tokens(p, 2) for p in prompts]


def test_a_cancelled_restore_gives_its_window_back(make):
    """SC-6: what was held for a window goes with the rest."""
    bench, disk = make(stored=[PROMPT])
    request = bench.submit(PROMPT, max_tokens=1)
    bench.step()
    bench.scheduler.finish(request)
    bench.cache.check()

    assert live(bench) == (0, 0)
    assert (disk.restores, bench.scheduler.is_idle) == ({}, True)


def test_no_room_for_a_restore_changes_nothing(make, expected_tokens):
    """GR-2: where one group has no room for what the disk has, the other one takes none."""
    bench, disk = make(12, 64, [PROMPT], reserve_full_prompt=False, max_num_seqs=2)
    other = bench.submit([70 + i for i in range(12)], max_tokens=8)
    bench.step()
    request = bench.submit(PROMPT, max_tokens=2)
    bench.step()

    assert (request.status, request.cached_tokens) == (RequestStatus.RUNNING, 0)
    assert (disk.restores, disk.proposed) == ({}, {})
    tables = [t.sequence.tables for t in (other, request)]
    assert live(bench) == tuple(sum(held[g].num_held for held in tables) for g in range(2))
    finish_all(bench, disk)
    assert request.tokens == expected_tokens(PROMPT, 2)


def test_a_failed_step_sends_a_restore_back_with_its_window(make, expected_tokens):
    """CT-11, SC-6: it begins again, and nothing that was held for it is lost."""
    bench, disk = make(stored=[PROMPT])
    request = bench.submit(PROMPT, max_tokens=2)
    bench.step()
    bench.scheduler.requeue_restoring()
    bench.cache.purge()
    bench.cache.check()

    assert (request.status, live(bench), disk.restores) == (RequestStatus.PREEMPTED, (0, 0), {})
    finish_all(bench, disk)
    assert request.restored_tokens == 40
    assert request.tokens == expected_tokens(PROMPT, 2)


def test_a_restoring_turn_is_preempted_with_its_window(make, expected_tokens):
    """SC-3, GR-2: a shortage takes what waits for the disk too, in both groups."""
    bench, disk = make(16, 64, [PROMPT], max_num_seqs=2, reserve_full_prompt=False)
    old = bench.submit([70 + i for i in range(12)], max_tokens=40)
    bench.step()
    new = bench.submit(PROMPT, max_tokens=3)
    bench.step()
    assert new.status is WAITS
    step_until(bench, lambda: new.preemptions)

    assert (new.status, new.sequence, disk.restores) == (RequestStatus.PREEMPTED, None, {})
    assert live(bench) == tuple(old.sequence.tables[g].num_held for g in range(2))
    finish_all(bench, disk)
    assert new.tokens == expected_tokens(PROMPT, 3)


# -- any order of events -------------------------------------------------------------------


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    num_blocks=st.integers(12, 24),
    window_blocks=st.integers(LEAST, 14),
    prompts=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=40), max_size=6),
    max_tokens=st.lists(st.integers(1, 8), min_size=6, max_size=6),
    budget=st.integers(1, SLICE),
    chunk=st.integers(1, SLICE),
    full=st.booleans(),
)
def test_every_turn_ends_with_the_tokens_of_a_lone_run(
    make, expected_tokens, num_blocks, window_blocks, prompts, max_tokens, budget, chunk, full
):
    """SC-1, SC-3, GR-2: batching, cuts and preemption change no token and no past."""
    bench, _ = make(
        num_blocks,
        window_blocks,
        max_batched_tokens=budget,
        prefill_chunk_size=chunk,
        reserve_full_prompt=full,
    )
    requests = [bench.submit(p, n) for p, n in zip(prompts, max_tokens, strict=False)]
    bench.run()

    assert live(bench) == (0, 0)
    for prompt, request in zip(prompts, requests, strict=True):
        assert request.tokens == expected_tokens(prompt, request.max_tokens)


heads = st.sampled_from([PROMPT[:8], PROMPT[:16], PROMPT[:36], [50, 51, 52, 53] * 3, []])
tails = st.lists(st.integers(1, 2), min_size=1, max_size=5)
prompts = st.tuples(heads, tails).map(lambda parts: parts[0] + parts[1])


class WindowMachine(RuleBasedStateMachine):
    """GR-2, SC-3, SD-1: whatever arrives, fails, ends or is taken, no token sees a wrong past.

    The device looks at every read; at the end each request has the tokens of a lone run and
    nothing is held in any group.
    """

    make: Make
    expected_tokens: Callable[[list[int], int], list[int]]

    @initialize(
        num_blocks=st.integers(12, 16),
        window_blocks=st.integers(LEAST, 12),
        stored=st.lists(prompts, max_size=3),
        every=st.integers(1, 3),
        full=st.booleans(),
    )
    def start(
        self,
        num_blocks: int,
        window_blocks: int,
        stored: list[list[int]],
        every: int,
        full: bool,
    ) -> None:
        self.bench, self.disk = self.make(
            num_blocks, window_blocks, stored, max_num_seqs=3, reserve_full_prompt=full
        )
        self.disk.every = every
        self.requests: list[tuple[Request, list[int]]] = []
        self.cancelled: set[RequestId] = set()

    def having(self, *statuses: RequestStatus) -> list[Request]:
        return [request for request, _ in self.requests if request.status in statuses]

    @rule(prompt=prompts)
    def store(self, prompt: list[int]) -> None:
        self.disk.stored.append(prompt)

    @precondition(lambda self: len(self.requests) < 8)
    @rule(
        new=st.lists(st.tuples(prompts, st.integers(1, 20)), min_size=1, max_size=3),
        salt=st.integers(0, 1),
    )
    def submit(self, new: list[tuple[list[int], int]], salt: int) -> None:
        for prompt, max_tokens in new:
            self.requests.append((self.bench.submit(prompt, max_tokens, salt), prompt))

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            if not self.bench.step().rows:
                self.bench.previous = None

    @precondition(lambda self: self.having(WAITS))
    @rule(data=st.data(), lost=st.integers(0, 3))
    def arrive(self, data: st.DataObject, lost: int) -> None:
        self.disk.arrive(data.draw(st.sampled_from(self.having(WAITS))), lost)

    @precondition(lambda self: len(self.having(RequestStatus.FINISHED)) < len(self.requests))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        unfinished = [t for t, _ in self.requests if t.status is not RequestStatus.FINISHED]
        request = data.draw(st.sampled_from(unfinished))
        self.bench.scheduler.finish(request)
        self.cancelled.add(request.id)

    @rule(groups=st.sampled_from([[FULL], [SLIDING], [FULL, SLIDING]]))
    def lose_memory(self, groups: list[int]) -> None:
        for group in groups:
            self.bench.cache.groups[group].allocator.purge()

    @rule()
    def requeue(self) -> None:
        self.bench.scheduler.requeue_restoring()

    @invariant()
    def cache_is_sound(self) -> None:
        self.bench.cache.check()
        scheduler, waiting = self.bench.scheduler, self.having(WAITS)

        assert self.disk.restores.keys() == {request.id for request in waiting}
        assert not self.disk.proposed
        assert len(scheduler.requests) == len(set(scheduler.requests))

    @invariant()
    def rows_hold_a_window(self) -> None:
        assert RESIDENT is not None
        for request in self.having(RequestStatus.RUNNING):
            assert request.sequence.tables[SLIDING].num_held <= RESIDENT.most
            assert request.sequence.spare == {}

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        finish_all(self.bench, self.disk)

        assert live(self.bench) == (0, 0)
        for request, prompt in self.requests:
            assert request.status is RequestStatus.FINISHED
            if request.id not in self.cancelled:
                assert request.tokens == self.expected_tokens(prompt, request.max_tokens)


def test_any_order_of_events(make, expected_tokens):
    """GR-2, SC-3, SD-1: the machine above, over the fixtures of this test."""
    machine = type("Machine", (WindowMachine,), {})
    machine.make = staticmethod(make)
    machine.expected_tokens = staticmethod(expected_tokens)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )
