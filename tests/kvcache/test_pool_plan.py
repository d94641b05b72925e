from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import (
    AttentionSpec,
    CacheLayout,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    layer_routes,
    uniform_layout,
)
from neve.errors import MemoryBudgetError
from neve.kvcache.memory import MIB
from neve.kvcache.pool_plan import GroupPlan, PoolPlan, Sizing, plan_pools
from neve.kvcache.resident import Resident

QWEN3_06B = uniform_layout(FullAttention(8, 128), 28)
BLOCK_BYTES = 1_835_008  # of 16 tokens in 2-byte elements


def make_plan(**changes: Any) -> PoolPlan:
    arguments: dict[str, Any] = {
        "layout": QWEN3_06B,
        "block_size": 16,
        "itemsize": 2,
        "max_context_tokens": 40_960,
        "max_num_seqs": 8,
    }
    return plan_pools(Sizing(**(arguments | changes)))


def test_the_default_maximum_is_2048_mib() -> None:
    """KV-6: without a setting the pools take 2048 MiB at most, all of it at load."""
    plan = make_plan(max_num_seqs=32)

    assert plan.max_blocks == 2048 * MIB // BLOCK_BYTES == 1170
    assert (plan.initial_blocks, plan.dynamic) == (1170, False)
    assert plan.effective_window_tokens == 1169 * 16


def test_an_initial_size_makes_the_pools_dynamic() -> None:
    """KV-6: the initial size counts in bytes, the window comes from the maximum."""
    plan = make_plan(max_bytes=100 * BLOCK_BYTES, initial_bytes=10 * BLOCK_BYTES + 1)

    assert plan == PoolPlan([GroupPlan(10, 100)], 99 * 16)
    assert plan.dynamic


def test_the_initial_size_is_clamped_to_the_maximum() -> None:
    """KV-6: an initial size beyond the maximum is the maximum."""
    plan = make_plan(max_bytes=10 * BLOCK_BYTES, initial_bytes=100 * BLOCK_BYTES)

    assert (plan.initial_blocks, plan.max_blocks, plan.dynamic) == (10, 10, False)


def test_live_memory_clamps_the_maximum() -> None:
    """KV-7: pools never take more than the device has left."""
    plan = make_plan(max_bytes=100 * BLOCK_BYTES, available_bytes=20 * BLOCK_BYTES)

    assert plan.max_blocks == 20


def test_no_more_blocks_than_sequences_can_fill() -> None:
    """KV-6: max_num_seqs full contexts and the null block are enough."""
    plan = make_plan(max_context_tokens=100, max_num_seqs=3)

    assert plan.max_blocks == 1 + 3 * 7
    assert plan.effective_window_tokens == 100


def test_all_groups_share_the_budget() -> None:
    """GR-4: each group gets the same number of blocks, so the budget is split by their size."""
    layout = layer_routes([FullAttention(1, 64), FullAttention(2, 64), FullAttention(2, 64)])
    block_bytes = (1 + 2 + 2) * 128 * 16 * 2

    assert make_plan(layout=layout, max_bytes=7 * block_bytes + 1).max_blocks == 7


@pytest.mark.parametrize("argument", ["max_bytes", "initial_bytes", "available_bytes"])
def test_too_small_a_pool_says_what_it_needs(argument: str) -> None:
    """KV-7: no room for one block and the null block is an error in MiB."""
    with pytest.raises(MemoryBudgetError, match=r"at least 4 MiB .* 3 MiB are allowed"):
        make_plan(**{argument: 2 * BLOCK_BYTES - 1})
    assert make_plan(**{argument: 2 * BLOCK_BYTES}).initial_blocks == 2


STATE = RecurrentState(
    [StateTensor("conv", (MIB // 4,)), StateTensor("sum", (MIB,), "float32")]
)
STATE_BYTES = MIB // 2 + 4 * MIB


def test_states_of_all_sequences_come_off_what_the_device_has() -> None:
    """KV-7: pools get what the recurrent states of max_num_seqs sequences leave."""
    layout = layer_routes([STATE, *[FullAttention(8, 128)] * 28, STATE])
    states = 8 * 2 * STATE_BYTES
    plan = make_plan(layout=layout, available_bytes=states + 10 * BLOCK_BYTES)

    assert (plan.max_blocks, plan.state_bytes) == (10, states)


def test_states_take_nothing_from_a_pool_size_that_was_asked_for() -> None:
    """KV-6: paged_cache_memory_mb is the size of the pools; states lie beside them."""
    layout = layer_routes([STATE, *[FullAttention(8, 128)] * 28])
    plan = make_plan(layout=layout, max_bytes=10 * BLOCK_BYTES)

    assert (plan.max_blocks, plan.state_bytes) == (10, 8 * STATE_BYTES)


def test_states_that_do_not_fit_are_refused() -> None:
    """KV-7: the error says what the states take, and what would help."""
    with pytest.raises(
        MemoryBudgetError, match=r"8 sequences take 36 MiB, 35 MiB .* lower max_num_seqs"
    ):
        make_plan(layout=layer_routes([STATE]), available_bytes=36 * MIB - 1)


def test_snapshots_come_off_what_the_device_has() -> None:
    """KV-7: pools leave room for kept states, but never more than half of what there is."""
    layout = layer_routes([STATE, *[FullAttention(8, 128)] * 28])
    states, left = 8 * STATE_BYTES, 20 * BLOCK_BYTES
    plan = make_plan(
        layout=layout, available_bytes=states + left, snapshot_bytes=4 * BLOCK_BYTES
    )

    assert (plan.max_blocks, plan.snapshot_bytes) == (16, 4 * BLOCK_BYTES)
    plan = make_plan(layout=layout, available_bytes=states + left, snapshot_bytes=10 * left)
    assert (plan.max_blocks, plan.snapshot_bytes) == (10, left // 2)


def test_without_attention_blocks_cost_nothing() -> None:
    """GR-1: recurrent layers alone need no pool; blocks count the tokens of all sequences."""
    plan = make_plan(
        layout=layer_routes([STATE]), max_context_tokens=100, max_bytes=1, initial_bytes=1
    )

    assert plan == PoolPlan([GroupPlan(1 + 8 * 7, 1 + 8 * 7)], 100, 8 * STATE_BYTES)


# -- windows -----------------------------------------------------------------------------

GEMMA = layer_routes([SlidingWindow(64, 1, 64)] * 5 + [FullAttention(1, 128)])
"""Per block of 16 tokens in 2-byte elements: 20 KiB of windows, 8 KiB of full attention."""
SLIDING_BYTES, FULL_BYTES = 5 * 128 * 16 * 2, 256 * 16 * 2


def pool_bytes(layout: CacheLayout, sizes: list[int], block_size: int, itemsize: int) -> int:
    return sum(
        size * layout.block_bytes(group, block_size, itemsize)
        for group, size in enumerate(sizes)
    )


@pytest.mark.parametrize("window", [1, 15, 16, 17, 64, 65])
@pytest.mark.parametrize("max_slice", [1, 7, 64, 69])
def test_resident_blocks_of_a_window(window: int, max_slice: int) -> None:
    """GR-3: `ceil((window - 1 + in flight) / S) + 1`, for one slice in flight, and for two."""
    resident = Resident.of(SlidingWindow(window, 1, 8), 16, max_slice)

    assert resident == Resident(
        most=(window - 1 + 2 * max_slice + 15) // 16 + 1,
        least=(window - 1 + max_slice + 15) // 16 + 1,
    )


@pytest.mark.parametrize("spec", [None, FullAttention(1, 8)])
def test_without_a_window_nothing_bounds_what_is_resident(spec: AttentionSpec | None) -> None:
    """GR-3: a group that keeps every position holds as many blocks as its sequences have."""
    assert Resident.of(spec, 16, 64) is None


def test_the_automatic_pools_hold_one_context_in_every_group() -> None:
    """GR-4: one request of the longest context, a null block and a block for each other row."""
    layout = layer_routes([SlidingWindow(1024, 8, 256)] * 40 + [FullAttention(1, 512)] * 8)
    plan = make_plan(layout=layout, max_context_tokens=131_072, max_num_seqs=4, max_slice=512)
    window, full = plan.groups

    assert (plan.primary, plan.effective_window_tokens) == (1, 131_072)
    assert full.max_blocks >= 131_072 // 16 + 4
    assert window.max_blocks >= (1023 + 1024 + 15) // 16 + 1 + 4
    assert not plan.dynamic


def test_an_automatic_maximum_beyond_2048_mib_is_the_minimum() -> None:
    """GR-4: where one context takes more than the default, the pools are made that large."""
    layout = layer_routes([SlidingWindow(1024, 8, 256)] * 40 + [FullAttention(8, 512)] * 8)
    plan = make_plan(layout=layout, max_context_tokens=131_072, max_num_seqs=4)
    sizes = [group.max_blocks for group in plan.groups]

    assert sizes == [(1023 + 2 + 15) // 16 + 1 + 4, 131_072 // 16 + 4]
    assert pool_bytes(layout, sizes, 16, 2) > 2048 * MIB


def test_a_small_budget_goes_to_what_a_sequence_needs() -> None:
    """GR-4: windows have what one sequence holds, and the rest is full attention's."""
    minimum = [(63 + 2 + 15) // 16 + 1 + 8, 4096 // 16 + 8]
    plan = make_plan(
        layout=GEMMA,
        max_context_tokens=4096,
        max_bytes=pool_bytes(GEMMA, minimum, 16, 2),
    )

    assert [group.max_blocks for group in plan.groups] == minimum
    assert plan.effective_window_tokens == 4096


def test_less_than_one_context_shortens_the_window_of_the_model() -> None:
    """GR-4: full attention alone bounds a sequence, by the blocks that it gets."""
    plan = make_plan(layout=GEMMA, max_context_tokens=4096, max_bytes=2 * MIB)
    window, full = plan.groups

    assert plan.effective_window_tokens == (full.max_blocks - 1) * 16 < 4096
    assert window.max_blocks > (63 + 15) // 16 + 2
    assert window.max_blocks * SLIDING_BYTES + full.max_blocks * FULL_BYTES <= 2 * MIB


def test_no_group_gets_more_than_sequences_can_fill() -> None:
    """KV-6: a window has room for what runs and four more windows a sequence, not contexts."""
    plan = make_plan(layout=GEMMA, max_context_tokens=4096, max_num_seqs=3, max_slice=64)

    assert [group.max_blocks for group in plan.groups] == [
        1 + 3 * ((63 + 128 + 15) // 16 + 1 + 4 * 4),
        1 + 3 * 256,
    ]


@pytest.mark.parametrize("num_bytes", [7 * SLIDING_BYTES + 2 * FULL_BYTES - 1, 0])
def test_less_than_a_window_is_refused(num_bytes: int) -> None:
    """GR-4: no room for a whole window is an error in MiB that says what is needed."""
    with pytest.raises(MemoryBudgetError, match=r"at least 1 MiB .* and a whole window"):
        make_plan(layout=GEMMA, max_bytes=num_bytes)


def test_the_least_is_a_window_and_one_block() -> None:
    """GR-4: with a whole window, one block behind it and one of full attention it runs."""
    plan = make_plan(layout=GEMMA, max_bytes=7 * SLIDING_BYTES + 2 * FULL_BYTES, max_slice=64)

    assert plan == PoolPlan([GroupPlan(7, 7), GroupPlan(2, 2)], 16, 0, 1, 16)


@pytest.mark.parametrize(("blocks", "max_slice"), [(7, 16), (8, 32), (12, 96)])
def test_a_slice_is_as_long_as_a_windows_pool_allows(blocks: int, max_slice: int) -> None:
    """GR-4: a step of that many tokens fits beside their window, wherever it begins."""
    plan = make_plan(
        layout=layer_routes([SlidingWindow(64, 1, 64)]),
        max_bytes=blocks * 128 * 16 * 2,
        max_slice=1024,
    )

    assert plan.groups[0].max_blocks == blocks
    assert plan.max_slice == max_slice
    assert Resident.of(SlidingWindow(64, 1, 64), 16, max_slice).least <= blocks - 1  # type: ignore[union-attr]


def test_growth_begins_with_the_initial_bytes_of_all_groups() -> None:
    """KV-6: the initial size is divided like the maximum, and exceeds it in no group."""
    plan = make_plan(
        layout=GEMMA, max_context_tokens=4096, max_bytes=8 * MIB, initial_bytes=MIB
    )
    initial = [group.initial_blocks for group in plan.groups]

    assert plan.dynamic
    assert all(group.initial_blocks <= group.max_blocks for group in plan.groups)
    assert pool_bytes(GEMMA, initial, 16, 2) <= MIB
    assert (plan.initial_blocks, plan.max_blocks) == (
        plan.groups[1].initial_blocks,
        plan.groups[1].max_blocks,
    )


any_spec = st.one_of(
    st.builds(FullAttention, kv_heads=st.integers(1, 3), head_dim=st.sampled_from([8, 64])),
    st.builds(
        SlidingWindow,
        window=st.integers(1, 300),
        kv_heads=st.integers(1, 3),
        head_dim=st.sampled_from([8, 64]),
    ),
)


@settings(deadline=None, max_examples=200)
@given(
    specs=st.lists(any_spec, min_size=1, max_size=6),
    block_size=st.sampled_from([1, 16, 48]),
    context=st.integers(1, 5000),
    num_seqs=st.integers(1, 9),
    max_slice=st.integers(1, 700),
    max_bytes=st.one_of(st.none(), st.integers(0, 1 << 24)),
    initial_bytes=st.one_of(st.none(), st.integers(0, 1 << 24)),
    available=st.one_of(st.none(), st.integers(0, 1 << 25)),
)
def test_no_budget_is_ever_exceeded(
    specs: list[AttentionSpec],
    block_size: int,
    context: int,
    num_seqs: int,
    max_slice: int,
    max_bytes: int | None,
    initial_bytes: int | None,
    available: int | None,
) -> None:
    """GR-4: whatever is allowed, all groups together take no more, or it is refused."""
    layout = layer_routes(specs)
    arguments: dict[str, Any] = {
        "block_size": block_size,
        "itemsize": 2,
        "max_context_tokens": context,
        "max_num_seqs": num_seqs,
        "max_slice": max_slice,
    }
    budget: dict[str, Any] = {
        "max_bytes": max_bytes,
        "initial_bytes": initial_bytes,
        "available_bytes": available,
    }
    try:
        plan = plan_pools(Sizing(layout=layout, **arguments, **budget))
    except MemoryBudgetError:
        allowed = min(n for n in budget.values() if n is not None)
        whole = plan_pools(Sizing(layout=layout, **arguments, max_bytes=1 << 40))
        sizes = [group.max_blocks for group in whole.groups]
        assert allowed < pool_bytes(layout, sizes, block_size, 2)
        return
    largest = [group.max_blocks for group in plan.groups]
    initial = [group.initial_blocks for group in plan.groups]

    for allowed in (max_bytes, available):
        assert allowed is None or pool_bytes(layout, largest, block_size, 2) <= allowed
    if initial_bytes is not None:
        assert pool_bytes(layout, initial, block_size, 2) <= initial_bytes
    assert all(2 <= a <= b for a, b in zip(initial, largest, strict=True))
    assert 1 <= plan.effective_window_tokens <= context
    blocks = -(-context // block_size)
    for spec, size in zip(layout.groups, largest, strict=True):
        assert size <= 1 + num_seqs * blocks
        if isinstance(spec, SlidingWindow):
            step = min(plan.max_slice or max_slice, max_slice)
            held = -(-(spec.window - 1 + step) // block_size) + 1
            assert size - 1 >= min(held, blocks), "one slice fits beside its window"
        else:
            assert (size - 1) * block_size >= plan.effective_window_tokens


@settings(deadline=None)
@given(
    spec=st.builds(FullAttention, kv_heads=st.integers(1, 3), head_dim=st.just(64)),
    context=st.integers(1, 5000),
    num_seqs=st.integers(1, 9),
    num_blocks=st.integers(2, 3000),
)
def test_one_group_of_full_attention_gets_what_it_always_got(
    spec: FullAttention, context: int, num_seqs: int, num_blocks: int
) -> None:
    """KV-6: as many blocks as the budget buys and sequences can fill; no slice is cut."""
    layout = uniform_layout(spec, 3)
    plan = make_plan(
        layout=layout,
        max_context_tokens=context,
        max_num_seqs=num_seqs,
        max_bytes=num_blocks * layout.block_bytes(0, 16, 2) + 1,
        max_slice=100,
    )
    expected = min(num_blocks, 1 + num_seqs * -(-context // 16))

    assert plan == PoolPlan([GroupPlan(expected, expected)], min(context, 16 * (expected - 1)))
