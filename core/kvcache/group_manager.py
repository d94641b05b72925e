"""One group at run time: its allocator, and when its pool grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..errors import CacheExhaustedError, MemoryBudgetError
from ..log import get_logger
from .block import Block
from .block_allocator import BlockAllocator
from .block_identity import PrefixChain
from .memory import grown_size
from .stats import GroupStats

GrowPool: TypeAlias = Callable[[int, int], None]
"""`(group, num_blocks)`: enlarge a physical pool, or raise `MemoryBudgetError` and leave it."""


class GroupManager:
    """One group's allocator, with growth before eviction.

    Attributes:
        index: The group's index in the layout.
        allocator: Its blocks.
        growths: Times that the pool grew.
        growth_refusals: Times that memory did not allow it.
    """

    def __init__(self, index: int, allocator: BlockAllocator, grow: GrowPool | None) -> None:
        self.index = index
        self.allocator = allocator
        self.growths = 0
        self.growth_refusals = 0
        self._grow_pool = grow
        self._last_refused = False
        self._log = get_logger("kvcache")

    @property
    def num_growable(self) -> int:
        """Blocks that growth could add; none between a refusal and `forget_refusal`."""
        if self._grow_pool is None or self._last_refused:
            return 0
        return self.allocator.max_num_blocks - self.allocator.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that are free, evictable or growable."""
        return self.allocator.num_available + self.num_growable

    @property
    def max_usable_blocks(self) -> int:
        """Blocks that sequences may ever hold, growth included."""
        allocator = self.allocator
        size = allocator.num_blocks if self._grow_pool is None else allocator.max_num_blocks
        return size - 1

    def make_room(self, num_blocks: int) -> None:
        """See to it that `allocator.allocate(num_blocks)` succeeds.

        What free and evictable blocks can't serve makes the pool grow, by so much that nothing
        is evicted for it. One growth is enough: it adds all of `num_blocks` or reaches the
        maximum.

        Raises:
            CacheExhaustedError: There are still too few blocks; no reference was changed.
        """
        allocator = self.allocator
        if num_blocks > allocator.num_available:
            self._grow(num_blocks)
            if num_blocks > allocator.num_available:
                raise CacheExhaustedError(num_blocks, allocator.num_available)

    def _grow(self, needed: int) -> None:
        allocator = self.allocator
        size = grown_size(allocator.num_blocks, needed, allocator.max_num_blocks)
        if self._grow_pool is None or size == allocator.num_blocks:
            return
        try:
            self._grow_pool(self.index, size)
        except MemoryBudgetError as error:
            self._refuse(size, error)
            return
        allocator.grow_by(size - allocator.num_blocks)
        self.growths += 1
        self._last_refused = False
        self._log.info("kvcache.pool.grown", group=self.index, num_blocks=size)

    def forget_refusal(self) -> None:
        """Count on growth again, after memory refused it."""
        self._last_refused = False

    def _refuse(self, size: int, error: MemoryBudgetError) -> None:
        self.growth_refusals += 1
        if not self._last_refused:  # a full cache asks again at every step
            self._log.warning(
                "kvcache.growth.refused", group=self.index, num_blocks=size, reason=str(error)
            )
        self._last_refused = True

    def find_prefix(self, chain: PrefixChain, max_blocks: int) -> list[Block]:
        """Return the published blocks of `chain` from its head to the first hole.

        Changes nothing and takes no reference.
        """
        found: list[Block] = []
        for block_hash, identity in zip(
            chain.hashes[:max_blocks], chain.identities[:max_blocks], strict=True
        ):
            block = self.allocator.lookup(block_hash, identity)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, block: Block, chain: PrefixChain, index: int) -> bool:
        """Publish block `index` of `chain`, held in `block`.

        Returns:
            Whether the prefix table now has the block's content, be it in another block (two
            sequences computed the same); False if another content has its hash.
        """
        identity, block_hash = chain.identities[index], chain.hashes[index]
        allocator = self.allocator
        return (
            allocator.publish(block, identity, block_hash)
            or allocator.lookup(block_hash, identity) is not None
        )

    def stats(self) -> GroupStats:
        """Return the figures as they are now."""
        allocator = self.allocator
        return GroupStats(
            num_blocks=allocator.num_blocks,
            max_num_blocks=allocator.max_num_blocks,
            num_free=allocator.num_free,
            num_evictable=allocator.num_evictable,
            num_live=allocator.num_live,
            evictions=allocator.evictions,
            growths=self.growths,
            growth_refusals=self.growth_refusals,
        )
