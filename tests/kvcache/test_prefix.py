from __future__ import annotations

from collections.abc import Callable, Sequence

from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.group_manager import GroupManager
from neve.kvcache.prefix import find_longest_prefix


def make_group(index: int, chain: PrefixChain, held: Sequence[int]) -> GroupManager:
    """Return a group in which the chain's blocks `held` are published."""
    allocator = BlockAllocator(16, chain.block_size)
    group = GroupManager(index, allocator, None)
    for position in held:
        (block,) = allocator.allocate(1)
        assert group.publish(block, chain, position)
    return group


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

    class EvenLengths(GroupManager):
        """Like a group whose state is valid at every second boundary."""

        def find_prefix(self, chain: PrefixChain, max_blocks: int) -> list[object]:  # type: ignore[override]  # blocks do not matter here
            asked.append(max_blocks)
            return [object()] * (max_blocks // 2 * 2)

    asked: list[int] = []
    even = EvenLengths(1, BlockAllocator(4, 4), None)
    found = find_longest_prefix([make_group(0, chain, range(3)), even], chain, 5)

    assert [len(blocks) for blocks in found] == [2, 2]
    assert asked == [5, 3, 2]
