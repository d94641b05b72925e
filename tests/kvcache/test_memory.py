from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.contract.cache_spec import (
    FullAttention,
    RecurrentState,
    StateTensor,
    group_layers,
    layer_routes,
    uniform_layout,
)
from neve.errors import CacheMisuseError, MemoryBudgetError
from neve.kvcache.memory import (
    MIB,
    GroupPlan,
    MemoryCoordinator,
    PoolPlan,
    grown_size,
    plan_pools,
)

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
    return plan_pools(**(arguments | changes))


def test_the_account_adds_up() -> None:
    """KV-7: the total is what is registered, after updates and releases."""
    memory = MemoryCoordinator()
    memory.register("weights", 100)
    memory.register("pool", 50)
    memory.update("pool", 80)

    assert memory.total == 180
    memory.release("weights")
    assert memory.total == 80


def test_the_cap_holds() -> None:
    """KV-7: what would pass the cap is refused, names who holds what, and changes nothing."""
    memory = MemoryCoordinator(10 * MIB)
    memory.register("weights", 7 * MIB)
    memory.register("pool", 1 * MIB)

    with pytest.raises(
        MemoryBudgetError, match="draft asks for 3 MiB of a limit of 10 MiB"
    ) as e:
        memory.register("draft", 3 * MIB)
    assert "weights 7 MiB, pool 1 MiB" in str(e.value)
    with pytest.raises(MemoryBudgetError, match="pool asks for 4 MiB"):
        memory.update("pool", 4 * MIB)
    assert memory.total == 8 * MIB
    memory.update("pool", 3 * MIB)
    assert memory.total == 10 * MIB


def test_shrinking_is_always_allowed() -> None:
    """KV-7: a holder may give back even while the cap is passed."""
    memory = MemoryCoordinator()
    memory.register("pool", 100)
    memory.limit_bytes = 10
    memory.update("pool", 50)

    assert memory.total == 50


def test_a_name_is_registered_once() -> None:
    """KV-7: registering twice, and changing or striking off a stranger, are errors."""
    memory = MemoryCoordinator()
    memory.register("pool", 0)

    with pytest.raises(CacheMisuseError, match="update it"):
        memory.register("pool", 1)
    with pytest.raises(CacheMisuseError, match="not registered"):
        memory.update("weights", 1)
    with pytest.raises(CacheMisuseError, match="not registered"):
        memory.release("weights")
    memory.release("pool")


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 60), min_size=1),
    st.integers(0, 100),
)
def test_the_total_never_passes_the_cap(sizes: dict[str, int], limit: int) -> None:
    """KV-7: whatever is registered in whatever order, the cap holds."""
    memory = MemoryCoordinator(limit)
    held = 0
    for name, size in sizes.items():
        try:
            memory.register(name, size)
        except MemoryBudgetError:
            assert held + size > limit
        else:
            held += size

    assert memory.total == held <= limit


@pytest.mark.parametrize(
    ("current", "needed", "maximum", "expected"),
    [(10, 1, 100, 20), (10, 15, 100, 25), (10, 15, 22, 22), (10, 1, 10, 10)],
)
def test_growth_rule(current: int, needed: int, maximum: int, expected: int) -> None:
    """KV-6: min(max, max(2*current, current + needed))."""
    assert grown_size(current, needed, maximum) == expected


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
    layout = group_layers([FullAttention(1, 64), FullAttention(2, 64), FullAttention(2, 64)])
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


def test_without_attention_blocks_cost_nothing() -> None:
    """GR-1: recurrent layers alone need no pool; blocks count the tokens of all sequences."""
    plan = make_plan(
        layout=layer_routes([STATE]), max_context_tokens=100, max_bytes=1, initial_bytes=1
    )

    assert plan == PoolPlan([GroupPlan(1 + 8 * 7, 1 + 8 * 7)], 100, 8 * STATE_BYTES)
