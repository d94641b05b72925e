from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.errors import CacheMisuseError, MemoryBudgetError
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.memory import MIB, MemoryCoordinator
from neve.kvcache.retention import PRE_LADDER_LIMIT, SNAPSHOTS_PER_OWNER, retention
from neve.kvcache.state_keeper import (
    ACCOUNT,
    MAX_SNAPSHOTS,
    KeptState,
    SnapshotBudget,
    StateKeeper,
)

MakeChain = Callable[..., PrefixChain]
Accounted: TypeAlias = tuple[StateKeeper, MemoryCoordinator]
SIZE = 4
STATE_BYTES = 100


def make(max_bytes: int = 0, *, ladder: bool = False, root: str | None = None) -> StateKeeper:
    keeper = StateKeeper(SIZE, STATE_BYTES, max_bytes=max_bytes, root=root)
    keeper.want_ladder = ladder
    return keeper


def keep(keeper: StateKeeper, chain: PrefixChain, *boundaries: int, owner: str = "") -> None:
    """Keep a state at each boundary, in this order; its handle says where and whose."""
    for boundary in boundaries:
        keeper.keep(owner, chain, KeptState(boundary, f"{owner}@{boundary}"))


def boundaries(keeper: StateKeeper) -> list[int]:
    return [entry.boundary for entry in keeper.snapshots.entries]


def test_a_state_is_found_at_its_boundary_and_nowhere_else(make_chain: MakeChain) -> None:
    """GR-5: a state sums up one prefix, and is good for no other."""
    keeper, chain, other = make(1000), make_chain(range(20)), make_chain(range(50, 70))
    keep(keeper, chain, 8, 16)

    assert keeper.deepest_boundary(chain.hashes) == 4
    assert keeper.deepest_boundary(chain.hashes[:3]) == 2
    assert keeper.deepest_boundary(chain.hashes[:1]) == 0
    assert keeper.deepest_boundary(other.hashes) == 0
    found = [keeper.state_at(block_hash) for block_hash in chain.hashes]
    assert found == [None, "@8", None, "@16", None]


def test_a_salt_keeps_states_apart(make_chain: MakeChain) -> None:
    """KV-9: equal tokens under another salt have no state."""
    keeper = make(1000)
    keep(keeper, make_chain(range(8), 5), 8)

    assert keeper.deepest_boundary(make_chain(range(8), 6).hashes) == 0
    assert keeper.deepest_boundary(make_chain(range(8), 5).hashes) == 2


def test_prompts_that_part_share_the_states_before_the_parting(make_chain: MakeChain) -> None:
    """GR-5: the deepest boundary lies on the asking prompt's own chain."""
    keeper = make(1000)
    keep(keeper, make_chain(range(20)), 8, 16)
    parted = make_chain([*range(10), *range(90, 100)])

    assert keeper.deepest_boundary(parted.hashes) == 2
    assert keeper.state_at(parted.hashes[1]) == "@8"


def test_a_state_may_be_kept_before_its_chain_has_grown_up(make_chain: MakeChain) -> None:
    """GR-5: a chain is a sequence's own list; what it grows by later changes nothing."""
    keeper, chain = make(1000), make_chain(range(8))
    keep(keeper, chain, 8)
    chain.extend(range(20), 5)

    assert keeper.deepest_boundary(chain.hashes) == 2


@pytest.mark.parametrize(
    ("ladder", "rungs"), [(True, [16, 80, 336, 1392]), (False, [1392])], ids=["cold", "hot"]
)
def test_a_prefill_stops_on_the_ladder_or_once(ladder: bool, rungs: list[int]) -> None:
    """SD-4: four rungs at a quarter each for a cold tier; the deep boundary alone without."""
    keeper = StateKeeper(16, STATE_BYTES)
    keeper.want_ladder = ladder

    assert keeper.boundaries(1400, 0) == rungs
    assert keeper.boundaries(1400, 336) == [1392]
    assert keeper.boundaries(1400, 1392) == []
    assert keeper.boundaries(16, 0) == []


@pytest.mark.parametrize(
    ("ladder", "cap"), [(True, SNAPSHOTS_PER_OWNER), (False, PRE_LADDER_LIMIT)]
)
def test_without_memory_the_caps_are_those_of_retention(
    ladder: bool, cap: int, make_chain: MakeChain
) -> None:
    """SD-6: a bound that allows fewer states than the tables say does not lower them."""
    keeper = make(STATE_BYTES, ladder=ladder)
    keep(keeper, make_chain(range(64)), *range(4, 64, 4))

    assert cap == retention(want_ladder=ladder).max_snapshots
    assert len(keeper.snapshots) == cap
    assert boundaries(keeper)[-1] == 60  # whatever goes, it is not the newest one


def test_memory_raises_the_caps(make_chain: MakeChain) -> None:
    """GR-5: as many states as their bytes allow are kept, of one owner or of many."""
    chain, capacity = make_chain(range(64)), 6
    for owners in (["a"], ["a", "b", "c"]):
        keeper = make(capacity * STATE_BYTES + STATE_BYTES // 2)
        for owner, boundary in zip(itertools.cycle(owners), range(4, 64, 4), strict=False):
            keep(keeper, chain, boundary, owner=owner)

        assert len(keeper.snapshots) == capacity
        assert keeper.snapshots.num_bytes <= capacity * STATE_BYTES
        assert keeper.deepest_boundary(chain.hashes) == 15


def test_however_small_states_are_there_is_an_end() -> None:
    """PK-2: what a look-up goes through is bounded."""
    keeper = StateKeeper(SIZE, 1, max_bytes=10 * MAX_SNAPSHOTS)
    for i in range(MAX_SNAPSHOTS + 3):
        chain = PrefixChain(SIZE)
        chain.extend([i] * SIZE, 1)
        keeper.keep(str(i), chain, KeptState(SIZE, i))

    assert len(keeper.snapshots) == MAX_SNAPSHOTS


def test_a_named_root_keeps_its_last_state(make_chain: MakeChain) -> None:
    """SD-6: subagents come and go; the root session can always go on."""
    keeper = make(ladder=True, root="root")
    keep(keeper, make_chain(range(20)), 16, owner="root")
    for i in range(9):
        keep(keeper, make_chain(range(50 + i, 70 + i)), 16, owner=f"agent {i}")

    assert keeper.deepest_boundary(make_chain(range(20)).hashes) == 4


def test_a_turn_writes_from_the_deepest_boundary_in_reach(make_chain: MakeChain) -> None:
    """SD-7: what is on a chain, deepest first; a state beyond its end is not on it."""
    keeper, chain = make(1000), make_chain(range(20))
    keep(keeper, chain, 4, 16, 8)
    keep(keeper, make_chain(range(50, 70)), 12)

    for reach, expected in [(5, [16, 8, 4]), (3, [8, 4]), (1, [4]), (0, [])]:
        found = keeper.on_chain(chain.hashes[:reach])

        assert [entry.boundary for entry in found] == expected


def test_of_two_owners_states_at_one_boundary_one_is_written(make_chain: MakeChain) -> None:
    """SD-7: a boundary has one sidecar, whoever reached it; the newest state is used."""
    keeper, chain = make(1000), make_chain(range(20))
    keep(keeper, chain, 8, 16, owner="a")
    keep(keeper, chain, 8, owner="b")
    found = keeper.on_chain(chain.hashes)

    assert [entry.handle for entry in found] == ["a@16", "b@8"]
    assert keeper.state_at(chain.hashes[1]) == "b@8"


def test_cleared_means_nothing_is_left(make_chain: MakeChain) -> None:
    """GR-5: after a failed step no state may be used again."""
    keeper, chain = make(1000), make_chain(range(20))
    keep(keeper, chain, 8, 16)
    keeper.clear()

    assert keeper.deepest_boundary(chain.hashes) == 0
    assert keeper.on_chain(chain.hashes) == []
    assert keeper.state_at(chain.hashes[1]) is None


def accounted(limit: int | None, *, others: int = 0, **options: Any) -> Accounted:
    """Return a keeper and its account, in which another holder is entered too."""
    memory = MemoryCoordinator(limit)
    memory.register("pool", others)
    keeper = StateKeeper(SIZE, STATE_BYTES, max_bytes=1000, account=memory, **options)
    return keeper, memory


def test_kept_states_are_entered_and_released(make_chain: MakeChain) -> None:
    """KV-7: the account has the bytes of the states that are kept, and of no other."""
    keeper, memory = accounted(None)
    for count, boundary in enumerate(range(4, 64, 4), 1):
        keep(keeper, make_chain(range(64)), boundary)

        assert memory.held()[ACCOUNT] == min(count, 10) * STATE_BYTES
    keeper.clear()
    assert memory.held()[ACCOUNT] == 0


def test_a_cap_goes_before_every_count(make_chain: MakeChain) -> None:
    """KV-7: older states make room for a new one where the cap has none."""
    keeper, memory = accounted(1000, others=700)
    keep(keeper, make_chain(range(64)), *range(4, 64, 4))

    assert boundaries(keeper)[-1] == 60
    assert len(keeper.snapshots) == 3
    assert memory.held()[ACCOUNT] == 3 * STATE_BYTES
    with pytest.raises(MemoryBudgetError, match="state snapshots"):
        memory.update("pool", 701)  # a pool grows by what states leave


@pytest.mark.parametrize("root", [None, "root"])
@pytest.mark.parametrize("ladder", [True, False])
def test_a_state_without_room_is_refused_by_number(
    make_chain: MakeChain, logged: list[Any], *, ladder: bool, root: str | None
) -> None:
    """KV-7: nothing else is lost for it; it is said once, and counted."""
    keeper, memory = accounted(1000, others=STATE_BYTES * 9 + 1, root=root)
    keeper.want_ladder = ladder
    keep(keeper, make_chain(range(64)), 8, 16)

    assert (len(keeper.snapshots), keeper.num_refused) == (0, 2)
    assert memory.held()[ACCOUNT] == 0
    (event,) = [e for e in logged if e["event"] == "kvcache.snapshot.refused"]
    assert event["limit_bytes"] == 1000
    memory.release("pool")
    keep(keeper, make_chain(range(64)), 8)
    assert boundaries(keeper) == [8]


def test_an_account_has_one_keeper() -> None:
    """KV-7: two models do not share one entry."""
    _, memory = accounted(None)

    with pytest.raises(CacheMisuseError, match="state snapshots"):
        StateKeeper(SIZE, STATE_BYTES, account=memory)


@pytest.mark.parametrize(
    ("asked", "available", "max_bytes", "num_bytes"),
    [
        (None, 320 * MIB, 10 * MIB, 10 * MIB),
        (None, 1 << 50, 2048 * MIB, 2048 * MIB),
        (None, 0, 0, 5 * MIB),
        (7, 0, 7 * MIB, 7 * MIB),
        (0, 1 << 50, 0, 5 * MIB),
    ],
)
def test_the_budget_is_asked_for_or_a_share(
    asked: int | None, available: int, max_bytes: int, num_bytes: int
) -> None:
    """KV-7: pools leave room for a handful of states at least."""
    budget = SnapshotBudget.of(asked, available, MIB)

    assert (budget.max_bytes, budget.num_bytes) == (max_bytes, num_bytes)


@given(
    kept=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 8)), max_size=30),
    capacity=st.integers(0, 12),
    ladder=st.booleans(),
)
def test_what_is_found_was_kept(
    kept: list[tuple[str, int]], capacity: int, *, ladder: bool
) -> None:
    """GR-5, SD-6: the bounds hold after each request; a state is found at its boundary."""
    keeper, chain = make(capacity * STATE_BYTES, ladder=ladder), PrefixChain(SIZE)
    chain.extend(range(40), 8)
    most = max(capacity, retention(want_ladder=ladder).max_snapshots)
    for owner, num_blocks in kept:
        keep(keeper, chain, num_blocks * SIZE, owner=owner)

        assert 1 <= len(keeper.snapshots) <= most
        for entry in keeper.on_chain(chain.hashes):
            found = keeper.state_at(chain.hashes[entry.num_blocks - 1])
            assert found == entry.handle == f"{entry.owner}@{entry.num_blocks * SIZE}"
    depths = [entry.num_blocks for entry in keeper.on_chain(chain.hashes)]
    assert depths == sorted(set(depths), reverse=True)
    assert keeper.deepest_boundary(chain.hashes) == max(depths, default=0)
