"""The scheduler over a real coordinator, with a model that does nothing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.errors import ContextLengthExceededError
from neve.scheduler.request import RequestStatus


def rows_of(plan):
    return [(r.request, r.position, r.length, r.samples) for r in plan.rows]


def test_prompt_is_computed_then_decoded(make_bench, expected_tokens):
    """SC-1: a prompt is one slice, then one decode row a step until `max_tokens`."""
    bench = make_bench()
    request = bench.submit([1, 2, 3, 4, 5], max_tokens=3)
    bench.run()

    assert [rows_of(p) for p in bench.plans if p.rows] == [
        [(0, 0, 5, True)],
        [(0, 5, 1, True)],
        [(0, 6, 1, True)],
    ]
    assert request.tokens == expected_tokens([1, 2, 3, 4, 5], 3)


def test_decode_row_is_planned_before_its_token_is_read(make_bench):
    """SC-9: the next decode step is planned while its token is still on the device."""
    bench = make_bench()
    request = bench.submit([1, 2, 3], max_tokens=3)
    bench.step()
    second = bench.scheduler.plan()

    assert request.num_outputs == 0
    assert [r.on_device for r in second.rows] == [True]


def test_decode_rows_come_first_and_share_the_budget(make_bench):
    """SC-1: decode rows take one token each, what is left goes to prefill slices."""
    bench = make_bench(max_batched_tokens=8)
    bench.submit([1, 2, 3], max_tokens=9)
    bench.step()
    bench.submit(list(range(100, 120)), max_tokens=1)
    plan = bench.step()

    assert rows_of(plan) == [(0, 3, 1, True), (1, 0, 7, False)]


def test_prefill_breaks_lie_on_the_grid_from_the_cached_prefix(make_bench):
    """SC-1: cuts are pinned on the chunk grid that begins at the cached prefix."""
    bench = make_bench(prefill_chunk_size=6, max_batched_tokens=100)
    prompt = list(range(1, 25))
    bench.submit(prompt, max_tokens=1)
    bench.run()
    bench.plans.clear()
    bench.submit(prompt[:8] + list(range(50, 63)), max_tokens=1)
    bench.run()

    assert [rows_of(p)[0][1:3] for p in bench.plans if p.rows] == [(8, 6), (14, 6), (20, 1)]


def test_long_prefill_leaves_budget_to_others(make_bench):
    """SC-1: one request's prefill takes at most `long_prefill_tokens` of a step."""
    bench = make_bench(long_prefill_tokens=6, max_batched_tokens=20)
    bench.submit(list(range(100, 130)), max_tokens=1)
    bench.submit([1, 2, 3], max_tokens=1)

    assert rows_of(bench.step()) == [(0, 0, 6, False), (1, 0, 3, True)]


def test_admission_reserves_the_whole_prompt_unless_told_otherwise(make_bench):
    """SC-2: a prompt of two steps is admitted beside another only if all of it has room."""
    admitted = {}
    for full in (True, False):
        bench = make_bench(
            12, max_batched_tokens=16, reserve_full_prompt=full, watermark_fraction=0.0
        )
        bench.submit(list(range(24)), max_tokens=8)
        bench.step()
        bench.submit(list(range(100, 140)), max_tokens=1)
        bench.step()
        bench.step()
        admitted[full] = bench.scheduler.stats().admitted

    assert admitted == {True: 1, False: 2}


def test_row_exact_slices_are_never_cut_by_the_budget(make_bench):
    """SC-8: in the row-exact lane a request's cuts do not depend on its neighbours."""
    bench = make_bench(prefill_chunk_size=6, max_batched_tokens=8, row_exact=True)
    bench.submit(list(range(1, 13)), max_tokens=1)
    bench.submit(list(range(50, 62)), max_tokens=1)
    bench.run()
    slices = [(t, length) for p in bench.plans for t, _, length, _ in rows_of(p)]

    assert all(length == 6 for _, length in slices)


def test_prompt_beyond_the_context_is_refused(make_bench):
    """SC-2: a prompt that does not fit fails with `context_length_exceeded`."""
    bench = make_bench(max_context=16)
    with pytest.raises(ContextLengthExceededError) as caught:
        bench.submit(list(range(17)))

    assert caught.value.code == "context_length_exceeded"
    assert caught.value.max_tokens == 16


def test_prompt_beyond_the_cache_is_refused(make_bench):
    """SC-2: so is one that would not fit into the cache if it were alone."""
    bench = make_bench(num_blocks=2)
    with pytest.raises(ContextLengthExceededError, match="cache"):
        bench.submit(list(range(9)))


def test_output_is_clamped_to_what_fits(make_bench):
    """SC-2: the last sampled token needs no place in the cache."""
    bench = make_bench(max_context=16)
    request = bench.submit(list(range(1, 15)), max_tokens=100)
    bench.run()

    assert request.max_tokens == request.num_outputs == 3


def test_a_finished_prefix_is_not_computed_again(make_bench):
    """KV-2: the second request starts behind the full blocks of the first."""
    bench = make_bench()
    prompt = list(range(1, 14))
    bench.submit(prompt, max_tokens=1)
    bench.run()
    second = bench.submit(prompt, max_tokens=1)
    bench.run()

    assert second.cached_tokens == 12


def test_turns_wait_for_a_prefix_in_the_making(make_bench):
    """Requests that arrive together compute their common prefix once."""
    bench = make_bench(max_batched_tokens=512)
    prefix = list(range(1, 41))
    requests = [bench.submit([*prefix, 100 + i], max_tokens=2) for i in range(4)]
    bench.run()

    assert [t.cached_tokens for t in requests] == [0, 40, 40, 40]
    assert bench.scheduler.stats().admission_deferred_prefix >= 3


def test_unrelated_turns_pass_one_that_waits_for_a_prefix(make_bench):
    """Waiting for a prefix holds nobody else up."""
    bench = make_bench(max_batched_tokens=512)
    prefix = list(range(1, 41))
    bench.submit([*prefix, 1], max_tokens=2)
    bench.submit([*prefix, 2], max_tokens=2)
    stranger = bench.submit([7, 7, 7], max_tokens=2)
    first = bench.step()

    assert [r.request for r in first.rows] == [0, stranger.id]


def test_waiting_turn_goes_on_when_the_owner_of_its_prefix_ends_early(make_bench):
    """A prefix that is given up is not waited for."""
    bench = make_bench(max_batched_tokens=8)
    prefix = list(range(1, 41))
    owner = bench.submit([*prefix, 1], max_tokens=2)
    other = bench.submit([*prefix, 2], max_tokens=2)
    bench.step()
    bench.scheduler.finish(owner)
    bench.run()

    assert other.status is RequestStatus.FINISHED
    assert other.num_outputs == 2


def test_salts_do_not_share(make_bench):
    """KV-9: equal prompts under different salts share nothing."""
    bench = make_bench()
    prompt = list(range(1, 14))
    bench.submit(prompt, max_tokens=1, salt=5)
    bench.run()
    other = bench.submit(prompt, max_tokens=1, salt=6)
    same = bench.submit(prompt, max_tokens=1, salt=5)
    bench.run()

    assert (other.cached_tokens, same.cached_tokens) == (0, 12)


def test_newest_turn_is_preempted_and_returns_first(make_bench, expected_tokens):
    """SC-3: a real shortage preempts the newest request; it goes to the queue's front."""
    bench = make_bench(num_blocks=8, watermark_fraction=0.0, max_num_seqs=2)
    old = bench.submit([1, 2, 3, 4, 5, 6], max_tokens=14)
    new = bench.submit([9, 8, 7, 6, 5, 4], max_tokens=14)
    late = bench.submit([5, 5], max_tokens=2)
    bench.run()

    assert (old.preemptions, new.preemptions > 0) == (0, True)
    taken = next(
        i for i, p in enumerate(bench.plans) if new.id in [v.request for v in p.preempted]
    )
    later = [{r.request for r in p.rows} for p in bench.plans[taken:]]
    assert next(ids for ids in later if late.id in ids) >= {new.id}
    for request, prompt in ((old, [1, 2, 3, 4, 5, 6]), (new, [9, 8, 7, 6, 5, 4])):
        assert request.tokens == expected_tokens(prompt, 14)
    assert late.tokens == expected_tokens([5, 5], 2)


def test_preempted_turn_finds_its_own_blocks_again(make_bench):
    """SC-3: full committed blocks are published before they are taken."""
    bench = make_bench(num_blocks=12, watermark_fraction=0.0)
    bench.submit(list(range(1, 9)), max_tokens=20)
    new = bench.submit(list(range(50, 66)), max_tokens=20)
    while not new.preemptions:
        bench.step()
    hits = bench.cache.stats().prefix_hit_tokens
    bench.run()

    assert bench.cache.stats().prefix_hit_tokens > hits


def test_at_most_one_victim_a_step(make_bench):
    """SC-3: a step preempts exactly one request, whatever it lacks."""
    bench = make_bench(num_blocks=9, watermark_fraction=0.0)
    for i in range(3):
        bench.submit([i * 10 + j for j in range(7)], max_tokens=20)
    bench.run()

    assert max(len(p.preempted) for p in bench.plans) == 1


def test_finish_while_waiting_releases_everything(make_bench):
    """SC-6: a request that never ran holds nothing."""
    bench = make_bench(max_num_seqs=1)
    bench.submit([1, 2, 3], max_tokens=2)
    waiting = bench.submit([4, 5, 6], max_tokens=2)
    bench.step()
    bench.scheduler.finish(waiting)
    bench.run()

    assert bench.num_live_blocks == 0


def test_finish_in_flight_ignores_the_late_token(make_bench):
    """SC-6: a token that arrives after the end counts for nothing."""
    bench = make_bench()
    request = bench.submit([1, 2, 3], max_tokens=5)
    bench.step()
    bench.step()
    outputs = request.num_outputs
    bench.scheduler.finish(request)
    bench.run()

    assert request.num_outputs == outputs
    assert bench.num_live_blocks == 0


def test_width_is_bounded(make_bench):
    """SC-1: no more requests run than `max_num_seqs`."""
    bench = make_bench(max_num_seqs=2)
    for i in range(5):
        bench.submit([i + 1, 2, 3], max_tokens=3)
    bench.run()

    assert bench.scheduler.stats().max_batch_occupancy == 2


def test_telemetry_adds_up(make_bench):
    """SC-10: admitted = completed + running + preempted ones, the histogram = the steps."""
    bench = make_bench()
    for i in range(5):
        bench.submit([i + 1, 2, 3], max_tokens=3)
    bench.run()
    stats = bench.scheduler.stats()

    assert stats.completed == stats.admitted - stats.preemptions == 5
    assert sum(stats.decode_batch_occupancy_hist.values()) == stats.global_steps
    assert (stats.running, stats.waiting, stats.reserved_blocks) == (0, 0, 0)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    num_blocks=st.integers(6, 24),
    prompts=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=16), max_size=6),
    max_tokens=st.lists(st.integers(1, 8), min_size=6, max_size=6),
    budget=st.integers(1, 24),
    chunk=st.integers(1, 12),
    cancelled=st.sets(st.integers(0, 5)),
    row_exact=st.booleans(),
)
def test_every_turn_ends_with_the_tokens_of_a_lone_run(
    make_bench,
    expected_tokens,
    num_blocks,
    prompts,
    max_tokens,
    budget,
    chunk,
    cancelled,
    row_exact,
):
    """SC-1, SC-3, SC-6: batching, cuts, preemption and cancellation change no token."""
    bench = make_bench(
        num_blocks,
        max_batched_tokens=budget,
        prefill_chunk_size=chunk,
        row_exact=row_exact,
        watermark_fraction=0.0,
    )
    requests = [bench.submit(p, n) for p, n in zip(prompts, max_tokens, strict=False)]
    for i in sorted(cancelled & set(range(len(requests)))):
        bench.step()
        if requests[i].status is not RequestStatus.FINISHED:
            bench.scheduler.finish(requests[i])
    bench.run()

    assert bench.num_live_blocks == 0
    for i, request in enumerate(requests):
        if i not in cancelled:
            assert request.tokens == expected_tokens(prompts[i], max_tokens[i])
