from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.contract.sidecar import anchor_grid
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.snapshots import Snapshot, Snapshots
from neve.kvcache.window_retention import (
    ELEMENT_BYTES,
    MAX_ANCHOR_BYTES,
    PRE_LADDER_LIMIT,
    WindowRules,
    choose_window_victim,
    rules_with_anchors,
    window_bytes,
)

SIZE = 16
WINDOW = 1024
ROW_BYTES = 2 * 81_920 * ELEMENT_BYTES  # the 12B model: keys and values of its sliding layers
GRID = [SIZE * anchor for anchor in anchor_grid(1, 4)]
LADDER = rules_with_anchors(GRID, WINDOW, ROW_BYTES)
PRE_LADDER = WindowRules()

CHAINS = PrefixChain(SIZE), PrefixChain(SIZE)
for first_token, made in enumerate(CHAINS):
    made.extend([first_token, *range(8191)], 512)


def entry(
    chain: PrefixChain, boundary: int, owner: str = "a", *, protected: bool = False
) -> Snapshot:
    return Snapshot(
        owner=owner,
        chain=chain.hashes,
        num_blocks=boundary // SIZE,
        boundary=boundary,
        num_bytes=window_bytes(boundary, WINDOW, ROW_BYTES),
        protected=protected,
    )


def keep_all(entries: Sequence[Snapshot], rules: WindowRules) -> list[int]:
    """Publish entries one by one, pruning after each; return the boundaries that are left."""
    kept = Snapshots()
    for one in entries:
        kept.put(one)
        while victim := choose_window_victim(kept.entries, rules):
            kept.drop(victim)
    return [left.boundary for left in kept.entries]


@pytest.fixture
def chain() -> PrefixChain:
    """A conversation of 8192 tokens."""
    return CHAINS[0]


@pytest.fixture
def other() -> PrefixChain:
    """Another conversation, different from its first token on."""
    return CHAINS[1]


def megabytes(num_bytes: int) -> float:
    return round(num_bytes / 1e6, 1)


# -- bytes -------------------------------------------------------------------------------


def test_a_boundary_costs_what_the_window_holds_there() -> None:
    """SD-6: below the window a boundary costs its own rows, beyond it a window's."""
    assert ROW_BYTES == 655_360
    assert [megabytes(window_bytes(b, WINDOW, ROW_BYTES)) for b in GRID] == [
        41.9,
        167.8,
        671.1,
        671.1,
    ]


def test_all_four_anchors_of_the_12b_fit_beside_the_reserve() -> None:
    """SD-6: 2894.1 MB of a budget of 3221.2 MB, 1342.2 MB of them for the two other entries."""
    reserve = PRE_LADDER_LIMIT * window_bytes(WINDOW, WINDOW, ROW_BYTES)
    total = reserve + sum(window_bytes(b, WINDOW, ROW_BYTES) for b in GRID)

    assert [megabytes(n) for n in (reserve, total, MAX_ANCHOR_BYTES)] == [
        1342.2,
        2894.1,
        3221.2,
    ]
    assert WindowRules(6, frozenset(GRID), MAX_ANCHOR_BYTES) == LADDER


def test_a_fifth_anchor_would_not_fit() -> None:
    """SD-6: anchors are admitted from the shallowest on while the budget lasts."""
    assert rules_with_anchors([*GRID, 16_384], WINDOW, ROW_BYTES) == LADDER


def test_anchors_behind_one_that_does_not_fit_are_not_admitted() -> None:
    """SD-6: the grid ends with the first anchor that does not fit."""
    rules = rules_with_anchors([64, 256, 1024], WINDOW, 2 * ROW_BYTES)

    assert rules.anchors == {64, 256}
    assert rules.max_snapshots == 4


def test_a_budget_that_the_reserve_spends_admits_no_anchor() -> None:
    """SD-6: without room for an anchor there are the two entries, and the bytes still count."""
    rules = rules_with_anchors(GRID, WINDOW, 3 * ROW_BYTES)

    assert rules == WindowRules(2, frozenset(), MAX_ANCHOR_BYTES)


@given(
    st.lists(st.integers(1, 600).map(lambda n: n * SIZE), unique=True).map(sorted),
    st.integers(1, 4096),
    st.integers(1, 1 << 21),
)
def test_what_is_planned_fits_the_budget(
    anchors: list[int], window: int, row_bytes: int
) -> None:
    """SD-6: the admitted anchors are the longest head of the grid that fits."""
    rules = rules_with_anchors(anchors, window, row_bytes)
    count = len(rules.anchors)
    costs = [window_bytes(b, window, row_bytes) for b in anchors]
    reserve = PRE_LADDER_LIMIT * window * row_bytes

    assert rules.anchors == set(anchors[:count])
    assert rules.max_snapshots == PRE_LADDER_LIMIT + count
    assert count == 0 or reserve + sum(costs[:count]) <= MAX_ANCHOR_BYTES
    if count < len(anchors):
        assert reserve + sum(costs[: count + 1]) > MAX_ANCHOR_BYTES


# -- victims -----------------------------------------------------------------------------


def test_without_a_cold_tier_the_oldest_of_three_goes(chain: PrefixChain) -> None:
    """SD-6: PreLadder holds on to two and gives up the oldest, be it shallow or an anchor."""
    entries = [entry(chain, b) for b in (2048, 64, 1024)]

    assert PRE_LADDER.max_snapshots == 2
    assert choose_window_victim(entries[:2], PRE_LADDER) is None
    assert choose_window_victim(entries, PRE_LADDER) is entries[0]


def test_without_a_cold_tier_bytes_do_not_count(chain: PrefixChain) -> None:
    """SD-6: PreLadder looks at the number alone, however large entries are."""
    entries = [attrs.evolve(entry(chain, b), num_bytes=MAX_ANCHOR_BYTES) for b in (2048, 4096)]

    assert choose_window_victim(entries, PRE_LADDER) is None


def test_without_a_cold_tier_the_oldest_unprotected_goes(chain: PrefixChain) -> None:
    """SD-6: PreLadder passes protected entries over."""
    entries = [entry(chain, 64, protected=True), entry(chain, 256), entry(chain, 1024)]

    assert choose_window_victim(entries, PRE_LADDER) is entries[1]


def test_the_oldest_that_is_no_anchor_goes_first(
    chain: PrefixChain, other: PrefixChain
) -> None:
    """SD-6: Ladder gives up what is not on the grid before anchors, strangers' too."""
    entries = [entry(other, 64)]
    entries += [entry(chain, b) for b in (256, 3072, 1024, 2048, 4096, 7168)]

    assert choose_window_victim(entries, LADDER) is entries[2]


def test_then_the_oldest_anchor_of_another_lineage(
    chain: PrefixChain, other: PrefixChain
) -> None:
    """SD-6: anchors of a conversation that has ended do not squat after a switch."""
    entries = [entry(chain, 64)]
    entries += [entry(other, b) for b in (1024, 64, 256)]
    entries += [entry(chain, b) for b in (256, 1024, 4096)]

    assert choose_window_victim(entries, LADDER) is entries[1]


def test_then_the_deepest_anchor(chain: PrefixChain) -> None:
    """SD-6: between two protected entries and a lineage's own anchors the deepest goes."""
    protected = [entry(chain, b, protected=True) for b in (3008, 5008)]
    anchors = [entry(chain, b) for b in (4096, 64, 256, 1024)]
    entries = [*protected, *anchors, entry(chain, 8128)]

    assert choose_window_victim(entries, LADDER) is anchors[0]


def test_the_newest_goes_last_of_all(chain: PrefixChain) -> None:
    """SD-6: where all others are protected, the newest entry itself is given up."""
    protected = [entry(chain, SIZE * i, protected=True) for i in range(1, 7)]
    newest = entry(chain, 8128)

    assert choose_window_victim([*protected, newest], LADDER) is newest


@given(
    st.lists(
        st.tuples(st.integers(1, 512), st.booleans(), st.booleans()), min_size=1, max_size=12
    ),
    st.booleans(),
)
def test_a_protected_entry_is_no_victim_while_there_is_another(
    parts: list[tuple[int, bool, bool]], ladder: bool
) -> None:
    """SD-6: whatever is held, a protected entry goes only as the newest and only one left."""
    entries = [
        entry(CHAINS[first], SIZE * blocks, protected=protected)
        for blocks, first, protected in parts
    ]
    victim = choose_window_victim(entries, LADDER if ladder else PRE_LADDER)

    if victim is not None and victim.protected:
        assert victim is entries[-1]
        assert all(older.protected for older in entries[:-1])


def test_six_full_windows_pass_the_byte_ceiling(chain: PrefixChain) -> None:
    """SD-6: six deep entries are not too many, but 4026.5 MB: two go, then it is enough."""
    boundaries = [2048, 3072, 4096, 5120, 6144, 7168]
    entries = [entry(chain, b) for b in boundaries]

    assert megabytes(sum(e.num_bytes for e in entries)) == 4026.5
    assert len(entries) <= LADDER.max_snapshots
    assert choose_window_victim(entries, LADDER) is entries[0]
    assert choose_window_victim(entries[1:], LADDER) is entries[1]
    assert choose_window_victim(entries[2:], LADDER) is None
    assert keep_all(entries, LADDER) == [4096, 5120, 6144, 7168]


def test_a_prompt_of_8140_tokens_leaves_the_grid_and_two_deep_boundaries(
    chain: PrefixChain,
) -> None:
    """SD-6: the seed's example, {64, 256, 1024, 4096, 7168, 8128}."""
    cadence = range(WINDOW, 8129, WINDOW)
    passed = sorted({*cadence, *GRID, 8128})

    assert keep_all([entry(chain, b) for b in passed], LADDER) == [
        64,
        256,
        1024,
        4096,
        7168,
        8128,
    ]
    assert keep_all([entry(chain, b) for b in passed], PRE_LADDER) == [7168, 8128]
