"""Who owns which block of one group: references, the prefix table, eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import CacheExhaustedError, CacheMisuseError
from ..ids import NULL_BLOCK, BlockHash, BlockId
from .block import Block, BlockQueue
from .block_identity import BlockIdentity


class BlockAllocator:
    """The blocks of one group. All operations are O(1) a block, amortised.

    A block that loses its last reference goes to the free queue when it is unpublished;
    a published one stays in the prefix table and is evicted when free blocks run out:

    1. A block that a window has moved past goes before all others, unless it is pinned: one
       pinned at least once belongs to a boundary that is worth keeping.
    2. The least recently released block goes first; `free` releases tails before heads.
    3. A block with published children is passed over as long as there is another, since
       without it they could not be found (KV-4).

    For rule 3 such a block is set aside when it comes to the front of `_evictable`. By then
    it is older than all that wait there, so once its last child is gone the front is its
    right place again. It is set aside once per child at most, hence the amortised O(1).

    Attributes:
        block_size: Tokens of a block.
        max_num_blocks: What `grow_by` may reach.
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
        self._expired = BlockQueue()  # cached, behind a window, in the order of their expiry
        self._evictable = BlockQueue()  # cached, least recently released first
        self._set_aside = BlockQueue()  # cached, reached the front while they had children
        self._table: dict[BlockHash, Block] = {}
        self._num_children: dict[BlockHash, int] = {}  # parent's hash -> its published children
        self._pins: Counter[BlockHash] = Counter()

    @property
    def null(self) -> Block:
        """The block that stands in a table for one that is not held any more."""
        return self._blocks[NULL_BLOCK]

    @property
    def num_blocks(self) -> int:
        """Blocks, the null block included."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Blocks that only the prefix table knows."""
        return len(self._expired) + len(self._evictable) + len(self._set_aside)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out."""
        return self.num_free + self.num_evictable

    @property
    def num_live(self) -> int:
        """Blocks that sequences hold."""
        return self.num_blocks - 1 - self.num_available

    @property
    def num_published(self) -> int:
        """Entries of the prefix table."""
        return len(self._table)

    def allocate(self, num_blocks: int) -> list[Block]:
        """Hand out blocks with one reference each: free ones first, then evicted ones.

        Their content is whatever was there before.

        Raises:
            CacheExhaustedError: There are fewer; nothing was changed.
        """
        if num_blocks > self.num_available:
            raise CacheExhaustedError(num_blocks, self.num_available)
        blocks = [
            self._free.pop_left() if self._free else self._evict() for _ in range(num_blocks)
        ]
        for block in blocks:
            block.ref_count, block.passed = 1, False
        return blocks

    def share(self, blocks: Sequence[Block]) -> None:
        """Take one more reference to each block; a cached one can't be evicted any more.

        Raises:
            CacheMisuseError: One of them is free or null; nothing was changed.
        """
        for block in blocks:
            if block.ref_count == 0 and block.hash is None:
                raise CacheMisuseError(f"share block {block.id}", "it is free")
        for block in blocks:
            if block.queue is not None:
                block.queue.remove(block)
            block.ref_count, block.passed = block.ref_count + 1, False

    def free(self, blocks: Sequence[Block]) -> None:
        """Give one reference to each block back, the last block first.

        Args:
            blocks: In logical order, so that a chain's tail is evicted before its head.

        Raises:
            CacheMisuseError: Nobody holds one of them, or it is named twice; nothing was
                changed.
        """
        self._check_held(blocks)
        for block in reversed(blocks):
            block.ref_count -= 1
            if block.ref_count == 0:
                (self._free if block.hash is None else self._evictable).append(block)

    def expire(self, blocks: Sequence[Block]) -> None:
        """Give one reference to each block back: a window has moved past it.

        Args:
            blocks: In logical order.

        Raises:
            CacheMisuseError: As `free`.
        """
        self._check_held(blocks)
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                block.passed = True
                pinned = block.hash in self._pins
                cached = self._evictable if pinned else self._expired
                (self._free if block.hash is None else cached).append(block)

    def _check_held(self, blocks: Sequence[Block]) -> None:
        if len(set(blocks)) != len(blocks):
            raise CacheMisuseError("free blocks", "one of them is named twice")
        for block in blocks:
            if block.ref_count == 0:
                raise CacheMisuseError(f"free block {block.id}", "nobody holds it")

    def pin(self, hashes: Sequence[BlockHash]) -> None:
        """Have blocks evicted like others, not first, once a window has moved past them."""
        self._pins.update(hashes)
        self.rescue(hashes)

    def unpin(self, hashes: Sequence[BlockHash]) -> None:
        """Take one pin of each block back; what a window has moved past goes first again."""
        self._pins.subtract(hashes)
        for block_hash in hashes:
            if self._pins[block_hash] > 0:
                continue
            del self._pins[block_hash]
            block = self._table.get(block_hash)
            if block is not None and block.queue is not None and block.passed:
                block.queue.remove(block)
                self._expired.append(block)

    def rescue(self, hashes: Sequence[BlockHash]) -> None:
        """Have blocks that a window has moved past evicted like others, not first.

        Those that a pin holds only as long as it does.
        """
        for block_hash in hashes:
            block = self._table.get(block_hash)
            if block is not None and block.queue is self._expired:
                self._expired.remove(block)
                self._evictable.append(block)
                block.passed = block_hash in self._pins

    def publish(self, block: Block, identity: BlockIdentity, block_hash: BlockHash) -> bool:
        """Enter a full block into the prefix table.

        A block published under another hash before loses that entry.

        Returns:
            False, and nothing was changed, if another block owns the hash.

        Raises:
            CacheMisuseError: Nobody holds the block, or it is not full.
        """
        if block.ref_count == 0:
            raise CacheMisuseError(f"publish block {block.id}", "nobody holds it")
        if len(identity.tokens) != self.block_size:
            raise CacheMisuseError(
                f"publish block {block.id}",
                f"it has {len(identity.tokens)} tokens, a full one has {self.block_size}",
            )
        owner = self._table.get(block_hash)
        if owner is not None:
            return owner is block
        if block.hash is not None:
            self._unpublish(block)
        self._table[block_hash] = block
        block.mark_published(block_hash, identity)
        if identity.index > 0:
            self._num_children[identity.parent] = self._num_children.get(identity.parent, 0) + 1
        return True

    def lookup(self, block_hash: BlockHash, identity: BlockIdentity) -> Block | None:
        """Return the block published under `block_hash`, if it is really `identity`.

        Changes nothing and takes no reference: `share` does.
        """
        block = self._table.get(block_hash)
        return block if block is not None and block.identity == identity else None

    def purge(self) -> None:
        """Unpublish everything: cached blocks become free, live ones stay live."""
        for block in list(self._table.values()):
            self._unpublish(block)
            if block.queue is not None:
                block.queue.remove(block)
                self._free.append(block)

    def grow_by(self, num_blocks: int) -> None:
        """Append free blocks; the physical pool must have them already.

        Raises:
            CacheMisuseError: There would be more than `max_num_blocks`.
        """
        size = self.num_blocks + num_blocks
        if num_blocks < 0 or size > self.max_num_blocks:
            raise CacheMisuseError(
                f"grow to {size} blocks",
                f"there are {self.num_blocks}, and at most {self.max_num_blocks} are allowed",
            )
        for index in range(self.num_blocks, size):
            block = Block(BlockId(index))
            self._blocks.append(block)
            self._free.append(block)

    def _evict(self) -> Block:
        """Unpublish and return an expired block, or else the oldest cached leaf.

        An ancestor, if there is no leaf.
        """
        self.evictions += 1
        if self._expired:
            block = self._expired.pop_left()
            self._unpublish(block)
            return block
        while self._evictable:
            block = self._evictable.pop_left()
            if block.hash not in self._num_children:
                break
            self._set_aside.append(block)
        else:
            block = self._set_aside.pop_left()
        self._unpublish(block)
        return block

    def _unpublish(self, block: Block) -> None:
        block_hash, identity = block.mark_unpublished()
        del self._table[block_hash]
        if identity.index == 0:
            return
        self._num_children[identity.parent] -= 1
        if self._num_children[identity.parent] == 0:
            del self._num_children[identity.parent]
            parent = self._table.get(identity.parent)
            if parent is not None and parent.queue is self._set_aside:
                self._set_aside.remove(parent)
                self._evictable.append_left(parent)

    def check(self) -> None:
        """Verify every equation that must hold; O(blocks).

        Raises:
            AssertionError: One is broken; a fault of this module.
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
        assert not stranded, "whoever is set aside has children"
        assert all(count > 0 for count in self._pins.values()), "a pin is there or is not"
        assert not any(b.hash in self._pins for b in self._expired), "a pinned block stays"
