"""Requests that wait for the disk, over a real coordinator and a disk that follows a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from neve.contract.cache_spec import FullAttention, uniform_layout
from neve.errors import RequestStateError
from neve.ids import RequestId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.scheduler.cold_port import RestoreProgress
from neve.scheduler.request import MOVES, Request, RequestStatus
from neve.scheduler.scheduler import Scheduler
from neve.settings import SchedulerSettings

SIZE = 4
PROMPT = list(range(1, 22))  # five blocks and a token
WAITS = RequestStatus.WAITING_FOR_SSD


class Memory(Coordinator):
    """A cache whose slots say what they hold: a salt and all tokens up to a position.

    Whatever is hit or committed must be the sequence's own content.
    """

    def __init__(self, num_blocks: int) -> None:
        layout = uniform_layout(FullAttention(1, 8), 1)
        super().__init__(layout, [BlockAllocator(num_blocks + 1, SIZE)])
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self.from_disk: object = None  # the sequence whose next commit was not computed

    def write(self, sequence, first: int, end: int) -> None:
        for position in range(first, end):
            self.slots[self._slot(sequence, position)] = self._content(sequence, position)

    def _slot(self, sequence, position: int) -> tuple[int, int]:
        index, offset = divmod(position, SIZE)
        return sequence.tables[0].blocks[index].id, offset

    def _content(self, sequence, position: int) -> tuple[int, ...]:
        return (sequence.salt, *sequence.tokens[: position + 1])

    def attach(self, sequence, hit) -> None:
        super().attach(sequence, hit)
        self.verify(sequence)

    def commit(self, sequence, n: int) -> None:
        if self.from_disk is not sequence:
            self.write(sequence, sequence.frontier, sequence.frontier + n)
        self.from_disk = None
        super().commit(sequence, n)
        self.verify(sequence)

    def verify(self, sequence) -> None:
        for position in range(sequence.frontier):
            held = self.slots.get(self._slot(sequence, position))
            assert held == self._content(sequence, position), "a sequence reads its own past"


@attrs.define(eq=False)
class Restore:
    """A restore on its way, in blocks."""

    first: int
    num_blocks: int
    arrived: int = 0
    written: int = 0


@attrs.define(eq=False)
class FakeCold:
    """A disk that holds what it is told to, and gives it when it is told to.

    Attributes:
        memory: Where it writes.
        stored: Token sequences whose full blocks it holds, whatever the salt.
        eager: Whether all arrives at once.
        spills: Whether it takes preempted requests.
        proposed: Request id -> a restore that was proposed.
        restores: Request id -> a restore that has begun.
        log: What it was asked, and for which request.
    """

    memory: Memory
    stored: list[list[int]] = attrs.field(factory=list)
    eager: bool = False
    spills: bool = False
    proposed: dict[RequestId, Restore] = attrs.field(factory=dict)
    restores: dict[RequestId, Restore] = attrs.field(factory=dict)
    log: list[tuple[str, RequestId]] = attrs.field(factory=list)

    def propose(self, request: Request, hit_length: int) -> int:
        first, limit = hit_length // SIZE, (len(request.tokens) - 1) // SIZE
        held = [min(limit, num_common(known, request.tokens) // SIZE) for known in self.stored]
        num_blocks = max(held, default=0) - first
        if num_blocks <= 0:
            return 0
        self.proposed[request.id] = Restore(first, num_blocks)
        return num_blocks * SIZE

    def begin(self, request: Request) -> None:
        self.log.append(("begin", request.id))
        self.restores[request.id] = self.proposed.pop(request.id)
        if self.eager:
            self.arrive(request)

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        restore = self.restores[request.id]
        count = restore.arrived - restore.written
        start = (restore.first + restore.written) * SIZE
        self.memory.write(request.sequence, start, start + count * SIZE)
        self.memory.from_disk = request.sequence
        restore.written += count
        done = restore.written == restore.num_blocks
        if done:
            del self.restores[request.id]
        return RestoreProgress(count * SIZE, done)

    def cancel(self, request: Request) -> None:
        self.log.append(("cancel", request.id))
        self.proposed.pop(request.id, None)
        self.restores.pop(request.id, None)

    def spill(self, request: Request) -> bool:
        self.log.append(("spill", request.id))
        if self.spills:
            self.stored.append(request.tokens[: request.sequence.num_published * SIZE])
        return self.spills

    # -- the script ----------------------------------------------------------------------

    def arrive(self, request: Request, num_blocks: int = 10**6) -> None:
        """Have the next blocks of a restore arrive, all that are left if not told otherwise."""
        restore = self.restores[request.id]
        restore.arrived = min(restore.num_blocks, restore.arrived + num_blocks)

    def fail(self, request: Request) -> None:
        """Have what has not arrived be lost."""
        restore = self.restores[request.id]
        restore.num_blocks = restore.arrived


def num_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


Make = Callable[..., tuple[Any, FakeCold]]


@pytest.fixture
def make(make_bench) -> Make:
    """Return a builder of a bench whose scheduler has a cold tier, and of that."""

    def build(num_blocks=64, stored=(), watermark_fraction=0.0, **options):
        bench = make_bench()
        bench.cache = Memory(num_blocks)
        cold = FakeCold(bench.cache, [list(tokens) for tokens in stored])
        bench.scheduler = Scheduler(
            SchedulerSettings(watermark_fraction=watermark_fraction, **options),
            bench.cache,
            max_context=512,
            block_size=SIZE,
            cold=cold,
        )
        return bench, cold

    return build


def rows_of(plan):
    return [(r.request, r.position, r.length) for r in plan.rows]


def step_until(bench, condition: Callable[[], object]) -> None:
    for _ in range(500):
        if condition():
            return
        bench.step()
    raise AssertionError("it does not come to that")


def finish_all(bench, cold) -> None:
    """Let the disk give all that it has, and step until everything has ended."""
    cold.eager = True
    for request in bench.scheduler.requests:
        if request.id in cold.restores:
            cold.arrive(request)
    bench.run()


# -- the way of a restore ----------------------------------------------------------------


def test_turn_waits_for_the_disk_then_computes_the_rest(make, expected_tokens):
    """CT-1, CT-11: what the disk holds is restored, and only the rest is computed."""
    bench, cold = make(stored=[PROMPT])
    request = bench.submit(PROMPT, max_tokens=3)
    assert not bench.step().rows
    assert request.status is WAITS

    cold.arrive(request)
    assert rows_of(bench.step()) == [(0, 20, 1)]
    assert (request.status, request.cached_tokens, request.restored_tokens) == (
        RequestStatus.RUNNING,
        20,
        20,
    )
    finish_all(bench, cold)
    assert request.tokens == expected_tokens(PROMPT, 3)


def test_restore_begins_behind_what_memory_holds(make):
    """CT-1: memory is asked first, the disk for what lies behind."""
    bench, cold = make(stored=[PROMPT])
    cold.stored.clear()
    bench.submit(PROMPT[:9], max_tokens=1)
    bench.run()
    cold.stored.append(PROMPT)
    request = bench.submit(PROMPT, max_tokens=1)
    bench.step()
    assert (cold.restores[request.id].first, cold.restores[request.id].num_blocks) == (2, 3)

    finish_all(bench, cold)
    assert (request.cached_tokens, request.restored_tokens) == (20, 12)


def test_prefill_grid_begins_behind_the_restored_prefix(make):
    """SC-1: cuts are pinned on the grid that begins where computing does."""
    prompt = list(range(1, 41))
    bench, cold = make(stored=[prompt[:16]], prefill_chunk_size=10)
    request = bench.submit(prompt, max_tokens=1)
    bench.step()
    cold.arrive(request)
    bench.run()

    assert [rows_of(p)[0][1:] for p in bench.plans if p.rows] == [(16, 10), (26, 10), (36, 4)]


def test_others_decode_meanwhile(make):
    """CT-11: a request that waits for the disk holds up no decode and no arrival."""
    bench, cold = make(stored=[PROMPT])
    runner = bench.submit([70, 71, 72], max_tokens=20)
    bench.step()
    waiting = bench.submit(PROMPT, max_tokens=1)
    late = bench.submit([80, 81], max_tokens=1)
    plans = [bench.step() for _ in range(5)]

    assert all((runner.id, 3 + i, 1) in rows_of(p) for i, p in enumerate(plans))
    assert (waiting.status, late.status) == (WAITS, RequestStatus.FINISHED)
    finish_all(bench, cold)
    assert waiting.restored_tokens == 20


def test_arrivals_are_committed_as_they_come(make):
    """CT-11: each look commits and publishes what has arrived, and nothing more."""
    bench, cold = make(stored=[PROMPT])
    request = bench.submit(PROMPT, max_tokens=1)
    bench.step()
    frontiers = []
    for count in (0, 2, 0, 1):
        cold.arrive(request, count)
        bench.step()
        frontiers.append((request.sequence.frontier, request.sequence.num_published))

    assert frontiers == [(0, 0), (8, 2), (8, 2), (12, 3)]
    assert request.status is WAITS


def test_blocks_are_charged_from_the_start(make):
    """SC-2, CT-11: what will be restored is reserved at admission, and the rest accounted."""
    bench, cold = make(num_blocks=8, stored=[PROMPT])
    bench.submit(PROMPT, max_tokens=1)
    other = bench.submit([90 + i for i in range(12)], max_tokens=1)
    bench.step()
    stats = bench.scheduler.stats()

    assert bench.num_live_blocks == 5
    assert (stats.reserved_blocks, stats.ssd_restore_waiting, stats.running) == (1, 1, 0)
    assert (other.status, stats.admission_deferred_blocks) == (RequestStatus.WAITING, 1)
    finish_all(bench, cold)


def test_watermark_is_kept_beside_a_restore(make):
    """SC-2: blocks stay free for a request that waits for the disk as for one that runs."""
    bench, cold = make(num_blocks=8, stored=[PROMPT], watermark_fraction=0.25)
    bench.submit(PROMPT, max_tokens=1)
    other = bench.submit([90 + i for i in range(8)], max_tokens=1)
    bench.step()

    assert (other.status, bench.scheduler.stats().block_watermark) == (RequestStatus.WAITING, 2)
    finish_all(bench, cold)


def test_width_counts_those_that_wait_for_the_disk(make):
    """SC-1: running and restoring requests together are no more than `max_num_seqs`."""
    bench, cold = make(stored=[PROMPT], max_num_seqs=2)
    bench.submit(PROMPT, max_tokens=1)
    runner = bench.submit([70, 71], max_tokens=9)
    third = bench.submit([80, 81], max_tokens=1)
    for _ in range(3):
        bench.step()

    assert (runner.status, third.status) == (RequestStatus.RUNNING, RequestStatus.WAITING)
    finish_all(bench, cold)


def test_idle_and_only_restores(make):
    """CT-11: the engine may sleep until the disk answers, but has not nothing to do."""
    bench, cold = make(stored=[PROMPT])
    assert not bench.scheduler.only_restores
    request = bench.submit(PROMPT, max_tokens=2)
    bench.step()

    assert (bench.scheduler.only_restores, bench.scheduler.is_idle) == (True, False)
    assert bench.scheduler.requests == [request]
    cold.arrive(request)
    bench.step()
    assert not bench.scheduler.only_restores


def test_nothing_on_disk_is_an_ordinary_admission(make):
    """CT-1: a miss costs no step."""
    bench, cold = make()
    request = bench.submit(PROMPT, max_tokens=1)

    assert rows_of(bench.step()) == [(0, 0, 21)]
    assert (request.cached_tokens, request.restored_tokens, cold.log) == (0, 0, [])
    assert bench.scheduler.stats().ssd_restores == 0


# -- prefixes that are shared ------------------------------------------------------------


def test_peer_waits_for_a_restored_prefix_then_hits_it(make):
    """CT-11: requests with one prefix read it once."""
    bench, cold = make(stored=[PROMPT])
    requests = [bench.submit([*PROMPT[:20], 60 + i], max_tokens=2) for i in range(3)]
    for _ in range(3):
        bench.step()
    assert [t.status for t in requests] == [WAITS, RequestStatus.WAITING, RequestStatus.WAITING]

    finish_all(bench, cold)
    assert [t.restored_tokens for t in requests] == [20, 0, 0]
    assert [t.cached_tokens for t in requests] == [20, 20, 20]
    assert bench.scheduler.stats().ssd_restores == 1


def test_peer_goes_on_as_soon_as_its_part_has_arrived(make):
    """CT-11: who shares two blocks does not wait for the third."""
    bench, cold = make(stored=[PROMPT])
    owner = bench.submit(PROMPT, max_tokens=1)
    peer = bench.submit([*PROMPT[:8], 60, 61], max_tokens=1)
    bench.step()
    cold.arrive(owner, 2)

    assert rows_of(bench.step()) == [(peer.id, 8, 2)]
    assert (owner.status, peer.cached_tokens) == (WAITS, 8)
    finish_all(bench, cold)


def test_peer_of_a_cancelled_restore_restores_itself(make):
    """SC-6: a prefix that is given up is not waited for."""
    bench, cold = make(stored=[PROMPT])
    owner = bench.submit(PROMPT, max_tokens=1)
    peer = bench.submit(PROMPT, max_tokens=1)
    bench.step()
    bench.scheduler.finish(owner)
    bench.step()

    assert peer.status is WAITS
    finish_all(bench, cold)
    assert peer.restored_tokens == 20


def test_peer_of_a_failed_restore_waits_for_what_is_computed(make):
    """CT-3, CT-11: what the disk has lost is computed once, for all who wait for it."""
    bench, cold = make(stored=[PROMPT])
    owner = bench.submit(PROMPT, max_tokens=1)
    peer = bench.submit(PROMPT, max_tokens=1)
    bench.step()
    cold.arrive(owner, 2)
    cold.fail(owner)
    bench.run()

    assert (owner.cached_tokens, owner.restored_tokens) == (8, 8)
    assert (peer.cached_tokens, peer.restored_tokens) == (20, 0)


# -- ends that come early ----------------------------------------------------------------


@pytest.mark.parametrize("arrived", range(6))
def test_rest_of_a_failed_restore_is_computed(make, expected_tokens, arrived):
    """CT-3: whatever the disk fails to give is computed, from exactly there."""
    bench, cold = make(stored=[PROMPT])
    request = bench.submit(PROMPT, max_tokens=3)
    bench.step()
    cold.arrive(request, arrived)
    cold.fail(request)
    plan = bench.step()

    assert rows_of(plan) == [(0, arrived * SIZE, len(PROMPT) - arrived * SIZE)]
    assert request.cached_tokens == request.restored_tokens == arrived * SIZE
    bench.run()
    assert request.tokens == expected_tokens(PROMPT, 3)


@pytest.mark.parametrize("arrived", [0, 2])
def test_cancel_while_restoring_frees_everything(make, arrived):
    """SC-6: the blocks, the disk and the place are given back; what has arrived stays."""
    bench, cold = make(stored=[PROMPT], max_num_seqs=1)
    request = bench.submit(PROMPT, max_tokens=1)
    bench.step()
    cold.arrive(request, arrived)
    bench.step()
    bench.scheduler.finish(request)
    bench.cache.check()

    assert (request.status, request.sequence) == (RequestStatus.FINISHED, None)
    assert (bench.num_live_blocks, cold.restores, cold.log[-1]) == (
        0,
        {},
        ("cancel", request.id),
    )
    assert bench.scheduler.is_idle
    other = bench.submit(PROMPT, max_tokens=1)
    finish_all(bench, cold)
    assert other.cached_tokens == 20
    assert other.restored_tokens == 20 - arrived * SIZE


def test_no_room_for_the_restore_computes_instead(make, expected_tokens):
    """CT-7: a request that could start but not hold what the disk has, starts."""
    prompt = list(range(1, 42))
    bench, cold = make(
        12, [prompt], reserve_full_prompt=False, max_batched_tokens=16, max_num_seqs=2
    )
    bench.submit([70 + i for i in range(12)], max_tokens=8)
    bench.step()
    request = bench.submit(prompt, max_tokens=2)
    bench.step()

    assert (request.status, request.cached_tokens) == (RequestStatus.RUNNING, 0)
    assert (cold.log, cold.proposed) == ([("cancel", request.id)], {})
    finish_all(bench, cold)
    assert request.tokens == expected_tokens(prompt, 2)


def test_failed_step_sends_restoring_turns_back(make):
    """CT-11: what was written for them is lost, so they begin again; none of it is reported."""
    bench, cold = make(stored=[PROMPT])
    request = bench.submit(PROMPT, max_tokens=1)
    late = bench.submit([80, 81], max_tokens=1)
    bench.step()
    cold.arrive(request, 2)
    bench.step()
    bench.scheduler.requeue_restoring()
    bench.cache.purge()
    bench.cache.check()

    assert (request.status, request.restored_tokens) == (RequestStatus.PREEMPTED, 0)
    assert (bench.num_live_blocks, cold.restores) == (0, {})
    assert late.status is RequestStatus.FINISHED
    finish_all(bench, cold)
    assert (request.cached_tokens, request.restored_tokens) == (20, 20)


# -- preemption --------------------------------------------------------------------------


def start_rivals(make, **options):
    """Return a bench where an old request decodes and a new one waits for the disk."""
    bench, cold = make(10, [PROMPT], max_num_seqs=2, **options)
    old = bench.submit([70 + i for i in range(12)], max_tokens=20)
    bench.step()
    new = bench.submit(PROMPT, max_tokens=3)
    bench.step()
    assert new.status is WAITS
    return bench, cold, old, new


def test_restoring_turn_is_preempted_and_restores_later(make, expected_tokens):
    """SC-3, CT-11: a shortage takes the newest request, also from the disk; it comes back."""
    bench, cold, old, new = start_rivals(make)
    cold.arrive(new, 2)
    step_until(bench, lambda: new.preemptions)

    assert (new.status, new.sequence) == (RequestStatus.PREEMPTED, None)
    assert (cold.restores, cold.log[-1]) == ({}, ("cancel", new.id))
    assert old.preemptions == 0
    finish_all(bench, cold)
    assert new.tokens == expected_tokens(PROMPT, 3)
    assert new.cached_tokens == 20
    assert cold.log.count(("begin", new.id)) == 2


def test_preempted_restore_is_a_recompute(make):
    """SC-4: there is nothing to spill of a request that comes from the disk."""
    bench, cold, _, new = start_rivals(make)
    cold.spills = True
    step_until(bench, lambda: new.preemptions)
    stats = bench.scheduler.stats()

    assert (stats.preemptions_ssd, stats.preemptions_recompute) == (0, 1)
    assert ("spill", new.id) not in cold.log
    finish_all(bench, cold)


def test_restored_tokens_are_counted_once(make):
    """CT-1: of a restore that began twice, no token is reported twice."""
    bench, cold, _, new = start_rivals(make)
    cold.arrive(new, 4)
    step_until(bench, lambda: new.preemptions)
    bench.cache.purge()  # memory has lost what had arrived
    finish_all(bench, cold)

    assert (new.cached_tokens, new.restored_tokens) == (20, 20)


def test_resumed_turn_keeps_the_figures_of_its_first_admission(make):
    """CT-11: a report says where the prompt came from when the request first ran."""
    bench, cold = make(10, [PROMPT], max_num_seqs=2)
    bench.submit([70 + i for i in range(9)], max_tokens=24)
    new = bench.submit(PROMPT, max_tokens=12)
    bench.step()
    cold.arrive(new)
    step_until(bench, lambda: new.preemptions)
    bench.cache.purge()
    step_until(bench, lambda: new.status is WAITS)
    bench.scheduler.requeue_restoring()

    assert (new.cached_tokens, new.restored_tokens) == (20, 20)
    finish_all(bench, cold)
    assert (new.cached_tokens, new.restored_tokens) == (20, 20)


@pytest.mark.parametrize("spills", [True, False])
def test_preemption_mode_is_counted(make, expected_tokens, spills):
    """SC-4: a victim's blocks were written first, or it recomputes; the counts say which."""
    bench, cold = make(10, max_num_seqs=2)
    cold.spills = spills
    prompts = [[70 + i for i in range(8)], [80 + i for i in range(8)]]
    requests = [bench.submit(prompt, max_tokens=16) for prompt in prompts]
    step_until(bench, lambda: requests[1].preemptions)
    bench.cache.purge()  # memory gives nothing back
    finish_all(bench, cold)
    stats = bench.scheduler.stats()

    assert stats.preemptions == stats.preemptions_ssd + stats.preemptions_recompute > 0
    assert (stats.preemptions_ssd > 0, stats.preemptions_recompute > 0) == (spills, not spills)
    assert (stats.ssd_restores > 0) == spills
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.tokens == expected_tokens(prompt, 16)


# -- the states --------------------------------------------------------------------------


def test_edges_of_the_disk_state():
    """CT-11: a request waits for the disk out of the queue, and goes on or back."""
    into = {status for status, to in MOVES.items() if WAITS in to}

    assert into == {RequestStatus.WAITING, RequestStatus.PREEMPTED}
    assert MOVES[WAITS] == {
        RequestStatus.RUNNING,
        RequestStatus.PREEMPTED,
        RequestStatus.FINISHED,
    }


@pytest.mark.parametrize("start", RequestStatus)
@pytest.mark.parametrize("end", RequestStatus)
def test_no_turn_leaves_the_table(start, end):
    """SC-6: any other edge is an error, and leaves the request as it was."""
    request = Request(RequestId(0), [1], 1)
    request.status = start
    if end in MOVES[start]:
        request.move(end)
        assert request.status is end
        return
    with pytest.raises(RequestStateError):
        request.move(end)

    assert request.status is start


# -- any order of events -----------------------------------------------------------------

heads = st.sampled_from([PROMPT[:8], PROMPT[:16], [50, 51, 52, 53] * 3, []])
tails = st.lists(st.integers(1, 2), min_size=1, max_size=5)
prompts = st.tuples(heads, tails).map(lambda parts: parts[0] + parts[1])


class RestoreMachine(RuleBasedStateMachine):
    """CT-11, SC-3, SC-6: whatever arrives, fails, ends or is taken, no request reads wrong KV.

    `Memory` verifies every hit and every commit; at the end each request has the tokens of a
    lone run and nothing is held.
    """

    make: Make
    expected_tokens: Callable[[list[int], int], list[int]]

    @initialize(
        num_blocks=st.integers(6, 12),
        stored=st.lists(prompts, max_size=3),
        spills=st.booleans(),
        full=st.booleans(),
    )
    def start(self, num_blocks: int, stored: list[list[int]], spills: bool, full: bool) -> None:
        self.bench, self.cold = self.make(
            num_blocks, stored, max_num_seqs=3, max_batched_tokens=16, reserve_full_prompt=full
        )
        self.cold.spills = spills
        self.requests: list[tuple[Request, list[int]]] = []
        self.cancelled: set[RequestId] = set()

    def having(self, *statuses: RequestStatus) -> list[Request]:
        return [request for request, _ in self.requests if request.status in statuses]

    @rule(prompt=prompts)
    def store(self, prompt: list[int]) -> None:
        self.cold.stored.append(prompt)

    @precondition(lambda self: len(self.requests) < 8)
    @rule(new=st.lists(st.tuples(prompts, st.integers(1, 20)), min_size=1, max_size=3))
    def submit(self, new: list[tuple[list[int], int]]) -> None:
        for prompt, max_tokens in new:
            self.requests.append((self.bench.submit(prompt, max_tokens), prompt))

    @precondition(lambda self: len(self.requests) < 8)
    @rule(prompt=prompts, salt=st.integers(1, 2))
    def submit_salted(self, prompt: list[int], salt: int) -> None:
        self.requests.append((self.bench.submit(prompt, 3, salt), prompt))

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            if not self.bench.step().rows:
                self.bench.previous = None

    @precondition(lambda self: self.having(WAITS))
    @rule(data=st.data(), num_blocks=st.integers(0, 4), fails=st.booleans())
    def arrive(self, data: st.DataObject, num_blocks: int, fails: bool) -> None:
        request = data.draw(st.sampled_from(self.having(WAITS)))
        self.cold.arrive(request, num_blocks)
        if fails:
            self.cold.fail(request)

    @precondition(lambda self: len(self.having(RequestStatus.FINISHED)) < len(self.requests))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        live = [
            request
            for request, _ in self.requests
            if request.status is not RequestStatus.FINISHED
        ]
        request = data.draw(st.sampled_from(live))
        self.bench.scheduler.finish(request)
        self.cancelled.add(request.id)

    @rule()
    def lose_memory(self) -> None:
        self.bench.cache.purge()

    @rule()
    def requeue(self) -> None:
        self.bench.scheduler.requeue_restoring()

    @invariant()
    def cache_is_sound(self) -> None:
        self.bench.cache.check()
        scheduler, waiting = self.bench.scheduler, self.having(WAITS)
        stats = scheduler.stats()

        assert self.cold.restores.keys() == {request.id for request in waiting}
        assert not self.cold.proposed
        assert stats.ssd_restore_waiting == len(waiting)
        assert stats.running == len(self.having(RequestStatus.RUNNING)) <= 3 - len(waiting)
        assert stats.preemptions == stats.preemptions_ssd + stats.preemptions_recompute
        assert len(scheduler.requests) == len(set(scheduler.requests))

    @invariant()
    def turns_are_what_they_say(self) -> None:
        for request, _ in self.requests:
            if request.status in (RequestStatus.FINISHED, RequestStatus.PREEMPTED):
                assert request.sequence is None or not request.sequence.tables[0].blocks
            if request.status is WAITS:
                sequence: Any = request.sequence
                assert sequence.frontier < sequence.cursor < len(request.tokens)
            if request.cached_tokens is not None:
                assert (
                    request.restored_tokens <= request.cached_tokens < request.num_prompt_tokens
                )

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        finish_all(self.bench, self.cold)

        assert self.bench.num_live_blocks == 0
        for request, prompt in self.requests:
            assert request.status is RequestStatus.FINISHED
            if request.id not in self.cancelled:
                assert request.tokens == self.expected_tokens(prompt, request.max_tokens)


def test_any_order_of_events(make, expected_tokens):
    """CT-11, SC-3, SC-6: the machine above, over the fixtures of this test."""
    machine = type("Machine", (RestoreMachine,), {})
    machine.make = staticmethod(make)
    machine.expected_tokens = staticmethod(expected_tokens)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None)
    )
