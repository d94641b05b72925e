"""The blocks of one group, by the queue in which each of them waits."""

from __future__ import annotations

from collections import Counter

from ..ids import NULL_BLOCK, BlockHash, BlockId
from .block import Block, BlockQueue


class BlockStock:
    """The blocks of one group, the prefix table and the queues, and the equations among them.

    Attributes:
        block_size: Tokens of a block.
        max_num_blocks: The most blocks that `grow_by` may reach.
        evictions: Blocks evicted so far.
    """

    def __init__(
        self, num_blocks: int, block_size: int, max_num_blocks: int | None = None
    ) -> None:
        self.block_size = block_size
        self.max_num_blocks = num_blocks if max_num_blocks is None else max_num_blocks
        self.evictions = 0
        if block_size < 1:
            raise ValueError(f"a block has at least one token, got {block_size}")
        if not 2 <= num_blocks <= self.max_num_blocks:
            raise ValueError(
                f"{num_blocks} blocks: at least 2 (one of them the null block) "
                f"and at most {self.max_num_blocks}"
            )
        self._blocks = [Block(BlockId(i)) for i in range(num_blocks)]
        self._free = BlockQueue(self._blocks[1:])
        self._expired = BlockQueue()  # cached, unpinned, passed by a window, oldest first
        self._evictable = BlockQueue()  # other cached blocks, least recently released first
        self._set_aside = BlockQueue()  # cached parents, skipped by eviction
        self._table: dict[BlockHash, Block] = {}
        self._num_children: dict[BlockHash, int] = {}  # parent's hash -> its published children
        self._pins: Counter[BlockHash] = Counter()

    @property
    def null(self) -> Block:
        """The placeholder in block tables for blocks that the sequence no longer holds."""
        return self._blocks[NULL_BLOCK]

    @property
    def num_blocks(self) -> int:
        """Blocks, the null block included."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks without references and without published content."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Published blocks without references."""
        return len(self._expired) + len(self._evictable) + len(self._set_aside)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free and evictable ones."""
        return self.num_free + self.num_evictable

    @property
    def num_live(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - 1 - self.num_available

    @property
    def num_published(self) -> int:
        """Entries of the prefix table."""
        return len(self._table)

    def check(self) -> None:
        """Verify all invariants; O(blocks).

        Raises:
            AssertionError: An invariant is broken, by a fault of this module.
        """
        queues = (self._free, self._expired, self._evictable, self._set_aside)
        for queue in queues:
            queued = list(queue)
            assert len(queued) == len(queue), "a queue's length is the number of its blocks"
            assert all(b.queue is queue for b in queued), "a queued block knows its queue"
        live = [b for b in self._blocks if b.ref_count > 0]
        total = sum(map(len, queues)) + len(live) + 1
        assert total == self.num_blocks, "free + cached + live + null = all"
        assert len(live) == self.num_live
        assert all(b.queue is None for b in live), "a live block waits nowhere"
        assert all(b.hash is None for b in self._free), "a free block is unpublished"
        null = self._blocks[NULL_BLOCK]
        assert (null.ref_count, null.hash, null.queue) == (0, None, None)
        self._check_table()

    def _check_table(self) -> None:
        published = {b.hash: b for b in self._blocks if b.hash is not None}
        assert published == self._table, "the prefix table and the blocks' hashes agree"
        cached = [*self._expired, *self._evictable, *self._set_aside]
        assert all(b.hash in self._table for b in cached), "a cached block is published"
        parents = (b.identity.parent for b in self._blocks if b.identity and b.identity.index)
        assert Counter(parents) == self._num_children, "children are counted"
        stranded = [b for b in self._set_aside if b.hash not in self._num_children]
        assert not stranded, "a block that is set aside has children"
        assert all(count > 0 for count in self._pins.values()), "a pin count of 0 is deleted"
        pinned_first = any(b.hash in self._pins for b in self._expired)
        assert not pinned_first, "a pinned block is not evicted first"
