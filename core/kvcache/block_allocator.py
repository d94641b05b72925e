"""The block allocator of one group: references, prefix table, eviction."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import CacheExhaustedError, CacheMisuseError
from ..ids import BlockHash, BlockId
from .block import Block
from .block_identity import BlockIdentity
from .block_stock import BlockStock


class BlockAllocator(BlockStock):
    """The blocks of one group. All operations are O(1) a block, amortised.

    An unpublished block that loses its last reference becomes free. A published block that
    loses its last reference stays in the prefix table until free blocks run out. Blocks are
    then evicted in this order:

    1. Unpinned blocks that a window has moved past go first. A pin marks a block of a
       boundary that is worth keeping.
    2. The least recently released block goes next. `free` releases tails before heads.
    3. A block with published children is skipped while another block can be evicted:
       children cannot be found without their parent (KV-4).

    For rule 3, a parent at the front of `_evictable` moves to `_set_aside`. The parent is then
    older than every block in `_evictable`, so the parent returns to the front when its last
    child is unpublished. A parent is set aside at most once per child, hence the amortised
    O(1).
    """

    def allocate(self, num_blocks: int) -> list[Block]:
        """Hand out blocks with one reference each: free blocks first, then evicted blocks.

        The pages keep their old content.

        Raises:
            CacheExhaustedError: Fewer blocks are available; nothing was changed.
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
        """Add one reference to each block. Cached blocks leave their eviction queue.

        Raises:
            CacheMisuseError: A block is free or null; nothing was changed.
        """
        for block in blocks:
            if block.ref_count == 0 and block.hash is None:
                raise CacheMisuseError(f"share block {block.id}", "the block is free")
        for block in blocks:
            if block.queue is not None:
                block.queue.remove(block)
            block.ref_count, block.passed = block.ref_count + 1, False

    def free(self, blocks: Sequence[Block]) -> None:
        """Drop one reference to each block, the last block first.

        Args:
            blocks: In logical order, so that a chain's tail is evicted before its head.

        Raises:
            CacheMisuseError: A block has no reference, or is named twice; nothing was changed.
        """
        self._check_held(blocks)
        for block in reversed(blocks):
            block.ref_count -= 1
            if block.ref_count == 0:
                (self._free if block.hash is None else self._evictable).append(block)

    def expire(self, blocks: Sequence[Block]) -> None:
        """Drop one reference to each block because a window has moved past the block.

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
            raise CacheMisuseError("free blocks", "a block is named twice")
        for block in blocks:
            if block.ref_count == 0:
                raise CacheMisuseError(f"free block {block.id}", "the block has no reference")

    def pin(self, hashes: Sequence[BlockHash]) -> None:
        """Add one pin to each block. A passed block with a pin is not evicted first."""
        self._pins.update(hashes)
        self.rescue(hashes)

    def unpin(self, hashes: Sequence[BlockHash]) -> None:
        """Remove one pin of each block. A passed block without pins is evicted first again."""
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
        """Move passed blocks back into the normal eviction order.

        The move lasts until the block's last pin is removed. Without a pin, the move lasts
        until a window passes the block again.
        """
        for block_hash in hashes:
            block = self._table.get(block_hash)
            if block is not None and block.queue is self._expired:
                self._expired.remove(block)
                self._evictable.append(block)
                block.passed = block_hash in self._pins

    def publish(self, block: Block, identity: BlockIdentity, block_hash: BlockHash) -> bool:
        """Enter a full block into the prefix table.

        A block that was published under another hash loses the old entry.

        Returns:
            False, and nothing was changed, if another block owns the hash.

        Raises:
            CacheMisuseError: The block has no reference, or is not full.
        """
        if block.ref_count == 0:
            raise CacheMisuseError(f"publish block {block.id}", "the block has no reference")
        if len(identity.tokens) != self.block_size:
            raise CacheMisuseError(
                f"publish block {block.id}",
                f"the block has {len(identity.tokens)} tokens, a full one {self.block_size}",
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
        """Return the block published under `block_hash` if its identity equals `identity`.

        No reference is taken; `share` takes references.
        """
        block = self._table.get(block_hash)
        return block if block is not None and block.identity == identity else None

    def purge(self) -> None:
        """Unpublish every block: cached blocks become free, live blocks stay live."""
        for block in list(self._table.values()):
            self._unpublish(block)
            if block.queue is not None:
                block.queue.remove(block)
                self._free.append(block)

    def grow_by(self, num_blocks: int) -> None:
        """Append free blocks. The pool on the device must have grown before.

        Raises:
            CacheMisuseError: The size would exceed `max_num_blocks`.
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
        """Unpublish and return a block: expired first, then the oldest leaf, then a parent."""
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
