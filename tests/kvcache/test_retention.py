from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.ids import BlockHash
from neve.kvcache.retention import (
    Retention,
    VictimOrder,
    gdn_prefix_checkpoint_limit,
    publish,
    retention,
    snapshot_ladder,
)
from neve.kvcache.snapshots import Snapshot, Snapshots

BLOCK_SIZE = 16
PROMPT = [16, 80, 336, 1392]
FLEET = retention(want_ladder=True, root="root")


def make(owner: str, boundary: int, lineage: str = "", num_bytes: int = 1) -> Snapshot:
    num_blocks = boundary // BLOCK_SIZE
    chain = [BlockHash(f"{owner}{lineage}{i}".encode()) for i in range(num_blocks)]
    return Snapshot(owner, chain, num_blocks, boundary, num_bytes)


def publish_all(
    snapshots: Snapshots,
    owner: str,
    boundaries: Sequence[int],
    rules: Retention,
    lineage: str = "",
) -> None:
    for boundary in boundaries:
        publish(snapshots, make(owner, boundary, lineage), rules)


def kept(snapshots: Snapshots) -> dict[str, list[int]]:
    boundaries: dict[str, list[int]] = {}
    for entry in snapshots.entries:
        boundaries.setdefault(entry.owner, []).append(entry.boundary)
    return boundaries


# -- the ladder --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tokens", "rungs"),
    [
        (1400, [16, 80, 336, 1392]),
        (1259, [16, 64, 304, 1248]),
        (90, [16, 80]),
        (1393, [16, 80, 336, 1392]),
        (1392, [16, 80, 336, 1376]),
        (100_000, [1552, 6240, 24_992, 99_984]),
        (17, [16]),
        (16, []),
        (1, []),
    ],
)
def test_ladder_rungs_are_quarters_of_the_one_above(num_tokens: int, rungs: list[int]) -> None:
    """SD-4: the last full block before the end, and block-aligned quarters; four at most."""
    assert snapshot_ladder(num_tokens, 0, BLOCK_SIZE) == rungs


@pytest.mark.parametrize(
    ("num_tokens", "cached", "rungs"),
    [
        (4096, 1008, [4080]),
        (4096, 1007, [1008, 4080]),
        (1400, 336, [1392]),
        (1400, 320, [336, 1392]),
        (1400, 1392, []),
        (1400, 1400, []),
    ],
)
def test_a_ladder_begins_behind_what_is_cached(
    num_tokens: int, cached: int, rungs: list[int]
) -> None:
    """SD-4: a prefill does not pass a boundary that it need not compute."""
    assert snapshot_ladder(num_tokens, cached, BLOCK_SIZE) == rungs


@pytest.mark.parametrize(("cached", "rungs"), [(0, [1392]), (1391, [1392]), (1392, [])])
def test_no_cold_policy_keeps_the_single_deep_boundary(cached: int, rungs: list[int]) -> None:
    """SD-4: without a policy the prefill is cut at one boundary, or at none."""
    assert snapshot_ladder(1400, cached, BLOCK_SIZE, want_ladder=False) == rungs


@given(st.integers(1, 200_000), st.integers(0, 200_000), st.sampled_from([1, 4, 16, 32]))
def test_a_ladder_is_aligned_rising_and_within_the_prefill(
    num_tokens: int, cached: int, block_size: int
) -> None:
    """SD-4: rungs are whole blocks behind the hit and before the end, quarters or less."""
    rungs = snapshot_ladder(num_tokens, cached, block_size)

    assert len(rungs) <= 4
    assert all(rung % block_size == 0 and cached < rung < num_tokens for rung in rungs)
    assert all(4 * low <= high for low, high in itertools.pairwise(rungs))
    assert rungs[-1:] == snapshot_ladder(num_tokens, cached, block_size, want_ladder=False)


# -- caps --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("want_ladder", "root", "total", "per_owner", "order"),
    [
        (False, None, 2, 2, VictimOrder.PRE_LADDER),
        (False, "root", 5, 2, VictimOrder.PRE_LADDER),
        (True, None, 4, 4, VictimOrder.LADDER),
        (True, "root", 5, 4, VictimOrder.LADDER),
    ],
)
def test_caps_and_order_come_from_one_row(
    want_ladder: bool, root: str | None, total: int, per_owner: int, order: VictimOrder
) -> None:
    """SD-6: the table of caps, each with its victim order."""
    rules = retention(want_ladder=want_ladder, root=root)

    assert rules == Retention(total, per_owner, order, root)


def test_a_fleet_of_four_and_its_root_fit() -> None:
    """SD-6: one snapshot each for a root session and four subagents."""
    snapshots, owners = Snapshots(), ["root", "a", "b", "c", "d"]
    for owner in owners:
        publish_all(snapshots, owner, PROMPT, FLEET)

    assert len(owners) <= gdn_prefix_checkpoint_limit()
    assert sorted(kept(snapshots)) == sorted(owners)


# -- victims -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "survivors"),
    [(VictimOrder.PRE_LADDER, [32, 48]), (VictimOrder.LADDER, [16, 48])],
)
def test_a_monotone_conversation(order: VictimOrder, survivors: list[int]) -> None:
    """SD-6: of three growing prefixes one order drops the first, the other the closest."""
    snapshots = Snapshots()
    publish_all(snapshots, "", [16, 32, 48], Retention(2, 2, order))

    assert kept(snapshots) == {"": survivors}


@pytest.mark.parametrize("root", [None, "root"])
def test_without_a_ladder_a_third_conversation_ends_the_first(root: str | None) -> None:
    """SD-6: conversations under one implicit owner share its two places, the oldest goes."""
    snapshots, rules = Snapshots(), retention(want_ladder=False, root=root)
    for lineage in "xyz":
        publish_all(snapshots, "", [3584], rules, lineage)

    assert [entry.hash[:1] for entry in snapshots.entries] == [b"y", b"z"]


def test_an_ancestor_goes_before_an_older_stranger() -> None:
    """SD-6: what another snapshot of the owner extends is redundant; a sibling is not."""
    snapshots, rules = Snapshots(), retention(want_ladder=False)
    publish_all(snapshots, "", [16], rules, "x")
    publish_all(snapshots, "", [16, 32], rules, "y")

    assert [(e.hash[:1], e.boundary) for e in snapshots.entries] == [(b"x", 16), (b"y", 32)]


def test_a_first_turn_keeps_its_whole_ladder() -> None:
    """SD-6: four rungs are the cap of an owner, so that later captures can anchor on them."""
    snapshots = Snapshots()
    publish_all(snapshots, "", PROMPT, retention(want_ladder=True))

    assert kept(snapshots) == {"": PROMPT}


def test_a_warm_turn_drops_the_rung_closest_to_the_next() -> None:
    """SD-6: the deepest grows along and the shallow rungs stay."""
    snapshots = Snapshots()
    publish_all(snapshots, "", [*PROMPT, 1936], retention(want_ladder=True))

    assert kept(snapshots) == {"": [16, 80, 336, 1936]}


def test_one_subagent_turn_strips_the_root_to_its_deepest_rung() -> None:
    """SD-6: the root's ladder is the preferred victim while it has more than one rung."""
    snapshots = Snapshots()
    publish_all(snapshots, "root", PROMPT, FLEET)
    publish_all(snapshots, "agent", PROMPT, FLEET)

    assert kept(snapshots) == {"root": [1392], "agent": PROMPT}


def test_four_single_entry_siblings_outlive_the_publishers_ladder() -> None:
    """SD-6: where nobody else has a rung to spare, the publisher is left with its deepest."""
    snapshots = Snapshots()
    for owner in "abcd":
        publish_all(snapshots, owner, [1392], FLEET)
    publish_all(snapshots, "root", PROMPT, FLEET)

    assert kept(snapshots) == {owner: [1392] for owner in [*"abcd", "root"]}


@pytest.mark.parametrize("want_ladder", [False, True])
def test_one_subagent_turn_leaves_every_sibling_a_snapshot(want_ladder: bool) -> None:
    """SD-6: with as many owners as places nobody goes blind, under either order."""
    rules, snapshots = retention(want_ladder=want_ladder, root="root"), Snapshots()
    owners = ["root", *"abcd"]
    for owner in owners:
        publish_all(snapshots, owner, PROMPT, rules)
    publish_all(snapshots, "b", [1936], rules)

    assert sorted(kept(snapshots)) == sorted(owners)
    assert kept(snapshots)["b"] == [1936]


def test_a_rung_is_measured_against_the_next_of_its_owner() -> None:
    """SD-6: what another owner published of the same prompt makes no rung redundant."""
    snapshots = Snapshots()
    rules = attrs.evolve(FLEET, max_snapshots=6)
    common = [BlockHash(bytes([i])) for i in range(40)]
    for owner, num_blocks in [("root", 1), ("root", 20), ("a", 2), ("a", 40)]:
        publish(snapshots, Snapshot(owner, common, num_blocks, 16 * num_blocks), rules)
    publish_all(snapshots, "b", [16, 160], rules)
    publish_all(snapshots, "c", [16], rules)

    assert kept(snapshots) == {"root": [16, 320], "a": [32, 640], "b": [160], "c": [16]}


def test_without_deferral_the_publisher_may_lose_first() -> None:
    """SD-6: the order from before the ladder spares nobody: the first ancestor goes."""
    snapshots = Snapshots()
    rules = attrs.evolve(retention(want_ladder=False, root="root"), max_snapshots=3)
    publish_all(snapshots, "a", [16], rules)
    publish_all(snapshots, "b", [16, 32], rules)
    publish_all(snapshots, "a", [32], rules)

    assert kept(snapshots) == {"b": [16, 32], "a": [32]}


def test_a_sixth_owner_takes_the_oldest_place_but_the_roots() -> None:
    """SD-6: more owners than places: the root's and the publisher's last ones stay."""
    snapshots = Snapshots()
    for owner in ["root", *"abcde"]:
        publish_all(snapshots, owner, [1392], FLEET)

    assert list(kept(snapshots)) == ["root", *"bcde"]


def test_caps_that_fall_take_effect_at_the_next_publication() -> None:
    """SD-6: when the cold tier goes away, every owner is pruned to two."""
    snapshots = Snapshots()
    publish_all(snapshots, "root", PROMPT, FLEET)
    publish_all(snapshots, "a", [16], retention(want_ladder=False, root="root"))

    assert kept(snapshots) == {"root": [336, 1392], "a": [16]}


def test_bytes_are_bounded_beside_the_count() -> None:
    """SD-6: for want of bytes the same ones go; a state that never fits takes nobody's."""
    snapshots, rules = Snapshots(), retention(want_ladder=True, root="root", max_bytes=30)
    for boundary in (16, 32, 80):
        publish(snapshots, make("a", boundary, num_bytes=10), rules)
    dropped = publish(snapshots, make("b", 16, num_bytes=10), rules)

    assert [(entry.owner, entry.boundary) for entry in dropped] == [("a", 16)]
    assert snapshots.num_bytes == 30
    large = make("c", 16, num_bytes=31)
    assert publish(snapshots, large, rules) == [large]
    assert kept(snapshots) == {"a": [32, 80], "b": [16]}


def test_what_is_dropped_is_told() -> None:
    """SD-6: whoever holds the states learns which ones are not needed any more."""
    snapshots, rules = Snapshots(), retention(want_ladder=False)
    first = make("", 16)

    assert publish(snapshots, first, rules) == []
    assert publish(snapshots, make("", 32), rules) == []
    assert publish(snapshots, make("", 48), rules) == [first]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["root", "a", "b", "c", "d", "e", "f"]),
            st.integers(1, 40),
            st.sampled_from("xy"),
            st.integers(0, 20),
        ),
        max_size=40,
    ),
    st.booleans(),
    st.sampled_from([None, "root"]),
    st.sampled_from([None, 10, 60]),
)
def test_bounds_hold_and_nobody_is_emptied_without_need(
    publications: list[tuple[str, int, str, int]],
    want_ladder: bool,
    root: str | None,
    max_bytes: int | None,
) -> None:
    """SD-6: all bounds hold after each one; a last one goes only for want of places."""
    rules = retention(want_ladder=want_ladder, root=root, max_bytes=max_bytes)
    snapshots = Snapshots()
    for owner, num_blocks, lineage, num_bytes in publications:
        before = {entry.owner for entry in snapshots.entries} | {owner}
        publish(snapshots, make(owner, 16 * num_blocks, lineage, num_bytes), rules)
        counts = Counter(entry.owner for entry in snapshots.entries)

        assert len(snapshots) <= rules.max_snapshots
        assert max(counts.values(), default=0) <= rules.max_per_owner
        assert max_bytes is None or snapshots.num_bytes <= max_bytes
        if max_bytes is None:
            assert owner in counts
            assert len(counts) == min(len(before), rules.max_snapshots)
