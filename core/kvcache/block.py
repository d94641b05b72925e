"""The record of a block, and queues of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import CacheMisuseError
from ..ids import BlockHash, BlockId
from .block_identity import BlockIdentity


class Block:
    """One block of one group: its references and its published hash.

    A block is in exactly one of four states:

    ========  =========  =========  ==========================================
    state     ref_count  hash       queue
    ========  =========  =========  ==========================================
    free      0          None       the free queue
    live      >= 1       any        None
    cached    0          set        one of the allocator's eviction queues
    null      0          None       None; only block 0, never handed out
    ========  =========  =========  ==========================================

    Attributes:
        id: Index in the group's pool.
        ref_count: Sequences whose table names the block; the prefix table takes no reference.
        passed: Whether a window has moved past the block since its last allocation or share.
        queue: The queue that contains the block. Only `BlockQueue` writes `queue`, `prev` and
            `next`.
        prev: The previous block in the queue; the block itself outside a queue.
        next: The next block in the queue; the block itself outside a queue.
    """

    __slots__ = ("_hash", "_identity", "id", "next", "passed", "prev", "queue", "ref_count")

    def __init__(self, block_id: BlockId) -> None:
        self.id = block_id
        self.ref_count = 0
        self.passed = False
        self.queue: BlockQueue | None = None
        self.prev: Block = self
        self.next: Block = self
        self._hash: BlockHash | None = None
        self._identity: BlockIdentity | None = None

    def __repr__(self) -> str:
        return (
            f"Block({self.id}, ref_count={self.ref_count}, published={self._hash is not None})"
        )

    @property
    def hash(self) -> BlockHash | None:
        """The block's key in the prefix table; None while the block is unpublished."""
        return self._hash

    @property
    def identity(self) -> BlockIdentity | None:
        """The identity behind the hash; None while the block is unpublished."""
        return self._identity

    def mark_published(self, block_hash: BlockHash, identity: BlockIdentity) -> None:
        """Set hash and identity, once.

        Raises:
            CacheMisuseError: The block is published; only `mark_unpublished` clears the hash.
        """
        if self._hash is not None:
            raise CacheMisuseError(f"publish block {self.id}", "the block has a hash already")
        self._hash, self._identity = block_hash, identity

    def mark_unpublished(self) -> tuple[BlockHash, BlockIdentity]:
        """Clear hash and identity, and return the former values.

        Raises:
            CacheMisuseError: The block is not published.
        """
        block_hash, identity = self._hash, self._identity
        if block_hash is None or identity is None:
            raise CacheMisuseError(f"unpublish block {self.id}", "the block has no hash")
        self._hash = self._identity = None
        return block_hash, identity


class BlockQueue:
    """A doubly linked list of blocks, with removal from the middle in O(1).

    The links are fields of the blocks. A move therefore allocates nothing, and a block is in
    one queue at most. One sentinel closes the ring, so no operation needs a branch for the
    ends.
    """

    __slots__ = ("_end", "_size")

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        self._end = Block(BlockId(-1))
        self._size = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Block]:
        block = self._end.next
        while block is not self._end:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Add `block` after the last block."""
        self._link(block, self._end.prev, self._end)

    def append_left(self, block: Block) -> None:
        """Add `block` before the first block."""
        self._link(block, self._end, self._end.next)

    def pop_left(self) -> Block:
        """Remove and return the first block.

        Raises:
            CacheMisuseError: The queue is empty.
        """
        if self._size == 0:
            raise CacheMisuseError("take a block", "the queue is empty")
        block = self._end.next
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        """Remove `block` from any place in the queue.

        Raises:
            CacheMisuseError: The block is not in this queue.
        """
        if block.queue is not self:
            raise CacheMisuseError(f"unlink block {block.id}", "the block is not in this queue")
        block.prev.next, block.next.prev = block.next, block.prev
        block.prev = block.next = block
        block.queue = None
        self._size -= 1

    def _link(self, block: Block, before: Block, after: Block) -> None:
        if block.queue is not None:
            raise CacheMisuseError(f"queue block {block.id}", "the block is in a queue already")
        block.prev, block.next = before, after
        before.next = after.prev = block
        block.queue = self
        self._size += 1
