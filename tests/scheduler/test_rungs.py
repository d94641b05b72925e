"""Prefills that stop for the state of recurrent layers, and requests that wait for it."""

from __future__ import annotations

import pytest

from neve.contract.cache_spec import FullAttention, RecurrentState, StateTensor, layer_routes
from neve.ids import RequestId, SaltDomain
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.state_keeper import KeptState, StateKeeper
from neve.scheduler.plan import StepPlan
from neve.scheduler.request import Request
from neve.scheduler.scheduler import Scheduler
from neve.settings import SchedulerSettings

BLOCK = 4
LAYOUT = layer_routes([FullAttention(1, 4), RecurrentState((StateTensor("s", (2,)),))])
SHARED = list(range(100, 118))  # four blocks and a half


@pytest.fixture
def cache() -> Coordinator:
    return Coordinator(
        LAYOUT, [BlockAllocator(200, BLOCK)], None, StateKeeper(BLOCK, 8, max_bytes=800)
    )


@pytest.fixture
def scheduler(cache: Coordinator) -> Scheduler:
    settings = SchedulerSettings(max_num_seqs=8, max_batched_tokens=1000)
    return Scheduler(settings, cache, max_context=1000, block_size=BLOCK)


def submit(scheduler: Scheduler, number: int, salt: int = 0, length: int = 11) -> Request:
    """Submit a prompt that begins like all others and ends like none."""
    tokens = [*SHARED, *range(1000 * number, 1000 * number + length)]
    request = Request(RequestId(number), tokens, 4, SaltDomain(salt))
    scheduler.submit(request)
    return request


def run(scheduler: Scheduler, cache: Coordinator) -> StepPlan:
    """Compute one step: what it samples is token 7, and every state is its boundary."""
    plan = scheduler.plan()
    scheduler.mark_in_flight(plan)
    for row in plan.rows:
        request = scheduler.settle(row, [7] if row.samples else [])
        assert request is not None
        if row.snapshot == "shared":
            kept = KeptState(row.end, row.end)
            cache.snapshots.reach(request.sequence, kept, shared=True)
    return plan


def ends(plan: StepPlan) -> dict[int, int]:
    return {row.request: row.end for row in plan.rows}


def test_a_prefill_stops_at_its_last_full_block(scheduler, cache):
    """SD-4: without a cold tier there is one checkpoint, strictly before the prompt's end."""
    request = submit(scheduler, 1)

    assert [ends(run(scheduler, cache)) for _ in range(2)] == [{1: 28}, {1: 29}]
    assert request.boundaries == [28]


def test_the_first_of_several_stops_where_they_part(scheduler, cache):
    """GR-5: requests with one beginning compute it once; the others go on from its state."""
    requests = [submit(scheduler, number) for number in range(1, 5)]
    first, second = run(scheduler, cache), run(scheduler, cache)

    assert ends(first) == {1: 16}
    assert {request.cached_tokens for request in requests[1:]} == {16}
    assert ends(second) == {1: 28, 2: 28, 3: 28, 4: 28}
    cache.check()


def test_another_salt_is_not_waited_for(scheduler, cache):
    """KV-9: what another domain is about to compute is of no use, and no reason to stop."""
    submit(scheduler, 1)
    submit(scheduler, 2, salt=5)

    assert ends(run(scheduler, cache)) == {1: 28, 2: 28}


def test_whoever_waits_goes_on_when_the_first_gives_up(scheduler, cache):
    """SC-6: a promise ends with the request that made it."""
    first, second = submit(scheduler, 1), submit(scheduler, 2)
    plan = scheduler.plan()
    scheduler.finish(first)

    assert ends(plan) == {1: 16}
    assert ends(run(scheduler, cache)) == {2: 28}
    assert second.cached_tokens == 0
    cache.check()


def test_a_state_without_its_blocks_is_not_hit(scheduler, cache):
    """GR-6: a checkpoint is found only behind blocks that are still there."""
    submit(scheduler, 1)
    run(scheduler, cache)
    for group in cache.groups:
        group.allocator.purge()
    again = submit(scheduler, 2)
    run(scheduler, cache)

    assert again.cached_tokens == 0
