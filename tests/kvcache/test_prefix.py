from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.contract.layer_spec import SlidingWindow
from neve.kvcache.block import Block
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_group import BlockGroup
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.full_manager import FullManager
from neve.kvcache.manager import Finder, Found, find_agreed
from neve.kvcache.window_manager import WindowManager


def make_group(
    index: int, chain: PrefixChain, held: Sequence[int], window: int | None = None
) -> Finder:
    """Return the manager of a group in which the chain's blocks `held` are published."""
    allocator = BlockAllocator(16, chain.block_size)
    spec = None if window is None else SlidingWindow(window, 1, 8)
    group = BlockGroup(index, allocator, None, spec)
    for position in held:
        (block,) = allocator.allocate(1)
        assert group.publish(block, chain, position)
    return FullManager([group]) if window is None else WindowManager([group], 8)


def find_longest_prefix(
    finders: Sequence[Finder], chain: PrefixChain, limit: int
) -> list[list[Block]]:
    """Return the entries of each finder's only group."""
    found = find_agreed(finders, chain, limit)
    assert [len(*f.blocks.values()) for f in found] == [f.num_blocks for f in found]
    return [blocks for f in found for blocks in f.blocks.values()]


def test_a_prefix_ends_at_the_first_hole(make_chain: Callable[..., PrefixChain]) -> None:
    """KV-3: blocks behind a missing one are not found."""
    chain = make_chain(range(16))
    (blocks,) = find_longest_prefix([make_group(0, chain, [0, 1, 3])], chain, 4)

    assert [b.hash for b in blocks] == chain.hashes[:2]


def test_all_groups_hold_the_prefix(make_chain: Callable[..., PrefixChain]) -> None:
    """GR-2: the group that holds least decides, and each answers with its own blocks."""
    chain = make_chain(range(16))
    groups = [make_group(i, chain, range(n)) for i, n in enumerate([4, 2, 3])]
    found = find_longest_prefix(groups, chain, 4)

    assert [len(blocks) for blocks in found] == [2, 2, 2]
    assert [b.hash for b in found[1]] == chain.hashes[:2]


def test_the_limit_holds(make_chain: Callable[..., PrefixChain]) -> None:
    """KV-3: no more is found than was asked for."""
    chain = make_chain(range(16))

    assert len(find_longest_prefix([make_group(0, chain, range(4))], chain, 3)[0]) == 3


def test_rounds_go_on_until_all_agree(make_chain: Callable[..., PrefixChain]) -> None:
    """GR-2: a group that holds certain lengths only is asked again below another's answer."""
    chain = make_chain(range(20))

    class EvenLengths:
        """Like a group whose state is valid at every second boundary."""

        def find(self, chain: PrefixChain, limit: int) -> Found:
            asked.append(limit)
            return Found(limit // 2 * 2)

    asked: list[int] = []
    found = find_agreed([make_group(0, chain, range(3)), EvenLengths()], chain, 5)

    assert [answer.num_blocks for answer in found] == [2, 2]
    assert asked == [5, 3, 2]


def test_full_and_windowed_groups_meet_at_one_boundary(
    make_chain: Callable[..., PrefixChain],
) -> None:
    """GR-7: the full group has all up to its hole, each window what it sees from there."""
    chain = make_chain(range(40))
    groups = [
        make_group(0, chain, [2, 3, 5, 6, 7], window=8),
        make_group(1, chain, range(7)),
        make_group(2, chain, [1, 2, 3, 6], window=3),
    ]
    found = find_longest_prefix(groups, chain, 10)

    assert [len(blocks) for blocks in found] == [7, 7, 7]
    assert [block.hash for block in found[0][5:]] == chain.hashes[5:7]
    assert [block.hash for block in found[2][6:]] == chain.hashes[6:7]
    assert [len(blocks) for blocks in find_longest_prefix(groups, chain, 6)] == [4, 4, 4]
    assert [len(blocks) for blocks in find_longest_prefix(groups, chain, 3)] == [0, 0, 0]


blocks_held = st.sets(st.integers(0, 9))


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    full=st.integers(0, 10),
    windows=st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 5, 8, 11]), blocks_held), min_size=1, max_size=3
    ),
    limit=st.integers(0, 10),
)
def test_the_joint_boundary_is_the_deepest_that_all_can_go_on_from(
    full: int,
    windows: list[tuple[int, set[int]]],
    limit: int,
    make_chain: Callable[..., PrefixChain],
) -> None:
    """GR-7: nothing deeper would do, in whatever order the groups stand."""
    chain = make_chain(range(40))
    groups = [make_group(0, chain, range(full))]
    groups += [make_group(i + 1, chain, sorted(h), w) for i, (w, h) in enumerate(windows)]
    valid = [
        n
        for n in range(1, min(full, limit) + 1)
        if all(h.issuperset(range(max(0, n * 4 - w + 1) // 4, n)) for w, h in windows)
    ]
    expected = max(valid, default=0)

    for order in (groups, groups[::-1]):
        assert {len(b) for b in find_longest_prefix(order, chain, limit)} == {expected}
