from __future__ import annotations

from collections.abc import Callable

import pytest

from neve.errors import CacheMisuseError
from neve.ids import BlockId
from neve.kvcache.block import Block, BlockQueue
from neve.kvcache.block_identity import PrefixChain


def make_blocks(count: int) -> list[Block]:
    return [Block(BlockId(i)) for i in range(count)]


def test_queue_is_first_in_first_out() -> None:
    """KV-1: blocks leave a queue in the order in which they came."""
    blocks = make_blocks(3)
    queue = BlockQueue(blocks)

    assert [queue.pop_left().id for _ in blocks] == [0, 1, 2]
    assert len(queue) == 0


def test_queue_removes_from_the_middle() -> None:
    """KV-1: a block leaves from anywhere and the others keep their order."""
    blocks = make_blocks(4)
    queue = BlockQueue(blocks)
    queue.remove(blocks[2])
    queue.append(blocks[2])
    queue.remove(blocks[0])
    queue.append_left(blocks[0])

    assert [b.id for b in queue] == [0, 1, 3, 2]
    assert len(queue) == 4


def test_a_removed_block_keeps_no_link() -> None:
    """KV-1: outside of a queue a block is linked to itself and may enter another queue."""
    blocks = make_blocks(3)
    queue, other = BlockQueue(blocks), BlockQueue()
    queue.remove(blocks[1])
    other.append(blocks[1])

    assert [b.id for b in other] == [1]
    assert blocks[1].queue is other


def test_queue_misuse_is_refused() -> None:
    """KV-8: taking from an empty queue, unlinking a stranger, queueing twice are errors."""
    block, stranger = make_blocks(2)
    queue, other = BlockQueue([block]), BlockQueue([stranger])

    with pytest.raises(CacheMisuseError, match="not in this queue"):
        queue.remove(stranger)
    with pytest.raises(CacheMisuseError, match="in a queue already"):
        other.append(block)
    with pytest.raises(CacheMisuseError, match="empty"):
        BlockQueue().pop_left()
    assert [b.id for b in queue] == [0]
    assert [b.id for b in other] == [1]


def test_a_hash_is_set_once(make_chain: Callable[..., PrefixChain]) -> None:
    """KV-3: a block has one hash, and forgetting it is the only way to another one."""
    chain = make_chain(range(8))
    block = Block(BlockId(1))
    block.mark_published(chain.hashes[0], chain.identities[0])

    with pytest.raises(CacheMisuseError, match="hash already"):
        block.mark_published(chain.hashes[1], chain.identities[1])
    assert block.mark_unpublished() == (chain.hashes[0], chain.identities[0])
    assert (block.hash, block.identity) == (None, None)
    with pytest.raises(CacheMisuseError, match="no hash"):
        block.mark_unpublished()
