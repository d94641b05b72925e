"""One cache group of attention layers: its allocator, and the growth of its pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..contract.layer_spec import AttentionSpec
from ..errors import CacheExhaustedError, MemoryBudgetError
from ..ids import BlockId
from ..log import get_logger
from .block import Block
from .block_allocator import BlockAllocator
from .block_identity import PrefixChain
from .block_table import BlockTable, blocks_for
from .resident import Resident
from .stats import GroupStats, group_kind

GrowPool: TypeAlias = Callable[[int, int], None]
"""`(group, num_blocks)`: enlarge a pool, or raise `MemoryBudgetError` and change nothing."""


def grown_size(current: int, needed: int, maximum: int) -> int:
    """Return the blocks of a pool after growth: doubled, or more if more is needed.

    Args:
        current: Blocks now.
        needed: Blocks that a reservation lacks.
        maximum: Blocks that the pool may have.
    """
    return min(maximum, max(2 * current, current + needed))


class BlockGroup:
    """One group's allocator, with growth before eviction.

    Attributes:
        index: The group's index in the layout.
        allocator: The allocator of the group's blocks.
        spec: The specification of the group's layers; None if all layers are recurrent.
        growths: How often the pool grew.
        growth_refusals: How often the memory budget refused growth.
    """

    def __init__(
        self,
        index: int,
        allocator: BlockAllocator,
        grow: GrowPool | None,
        spec: AttentionSpec | None = None,
        resident: Resident | None = None,
    ) -> None:
        """Make a group.

        Args:
            index: The group's index in the layout.
            allocator: The allocator of the group's blocks.
            grow: Enlarges the group's pool; None for a pool of fixed size.
            spec: The specification of the group's layers.
            resident: Bounds on the blocks of a sequence for a window and the tokens in flight;
                None if a sequence keeps every block.
        """
        self.index = index
        self.allocator = allocator
        self.spec = spec
        self._resident = resident
        self.growths = 0
        self.growth_refusals = 0
        self._grow_pool = grow
        self._last_refused = False
        self._log = get_logger("kvcache")

    @property
    def num_growable(self) -> int:
        """Blocks that growth can add; 0 between a refusal and `forget_refusal`."""
        if self._grow_pool is None or self._last_refused:
            return 0
        return self.allocator.max_num_blocks - self.allocator.num_blocks

    @property
    def num_available(self) -> int:
        """Blocks that are free, evictable or growable."""
        return self.allocator.num_available + self.num_growable

    @property
    def max_usable_blocks(self) -> int:
        """Blocks that sequences can hold at most, growth included."""
        allocator = self.allocator
        size = allocator.num_blocks if self._grow_pool is None else allocator.max_num_blocks
        return size - 1

    @property
    def visible_tokens(self) -> int | None:
        """Positions that the group's layers see; None for all positions."""
        return None if self.spec is None else self.spec.visible_tokens

    @property
    def max_tokens(self) -> int | None:
        """Length in tokens of the longest sequence that the pool holds; None: no bound."""
        if self._resident is not None and self.max_usable_blocks >= self._resident.least:
            return None
        return self.max_usable_blocks * self.allocator.block_size

    def num_resident(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of `num_tokens` holds at most."""
        num_blocks = blocks_for(num_tokens, self.allocator.block_size)
        if self._resident is None:
            return num_blocks
        return min(num_blocks, self._resident.most, self.max_usable_blocks)

    def real_blocks(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks without the null block."""
        return [block for block in blocks if block is not self.allocator.null]

    def num_missing(self, hit: Sequence[Block], num_tokens: int) -> int:
        """Return how many blocks a sequence of `num_tokens` needs beside its hit's blocks."""
        return max(0, self.num_resident(num_tokens) - len(self.real_blocks(hit)))

    def available_beside(self, hit: Sequence[Block]) -> int:
        """Return the value of `num_available` after a hit is attached.

        Cached blocks of the hit count as evictable until the hit is attached.
        """
        cached = sum(block.ref_count == 0 for block in self.real_blocks(hit))
        return self.num_available - cached

    def first_needed(self, num_tokens: int) -> int:
        """Return the index of the first block that a token at position `num_tokens` sees."""
        if self.spec is None:
            return 0
        return self.spec.first_visible(num_tokens) // self.allocator.block_size

    def share(self, table: BlockTable, num_blocks: int, blocks: Sequence[Block]) -> None:
        """Fill an empty table with a prefix of `num_blocks` blocks, the last ones shared.

        Args:
            table: The table of a new sequence.
            num_blocks: Blocks of the prefix; the entries before `blocks` become null.
            blocks: The last blocks of the prefix, all published.
        """
        self.allocator.share(blocks)
        table.extend_null(num_blocks - len(blocks))
        table.extend(blocks)

    def make_room(self, num_blocks: int) -> None:
        """Make sure that `allocator.allocate(num_blocks)` succeeds.

        The pool grows if free and evictable blocks are too few. A growth adds all of
        `num_blocks` or reaches the maximum, so one growth is enough.

        Raises:
            CacheExhaustedError: Too few blocks after growth; no reference was changed.
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
        """Allow growth again after the memory budget refused it."""
        self._last_refused = False

    def _refuse(self, size: int, error: MemoryBudgetError) -> None:
        self.growth_refusals += 1
        if not self._last_refused:  # a full cache asks at every step; one warning is enough
            self._log.warning(
                "kvcache.growth.refused", group=self.index, num_blocks=size, reason=str(error)
            )
        self._last_refused = True

    def lookup(self, chain: PrefixChain, index: int) -> Block | None:
        """Return the published block for block `index` of a chain; None if there is none."""
        return self.allocator.lookup(chain.hashes[index], chain.identities[index])

    def find_blocks(self, chain: PrefixChain, first: int, count: int) -> list[BlockId]:
        """Return ids of the published blocks `[first, first + count)`, up to the first gap."""
        found: list[BlockId] = []
        for index in range(first, min(first + count, len(chain.hashes))):
            block = self.lookup(chain, index)
            if block is None:
                break
            found.append(block.id)
        return found

    def publish(self, block: Block, chain: PrefixChain, index: int) -> bool:
        """Publish `block` as block `index` of `chain`.

        Returns:
            True if the prefix table has the content, in `block` or in another block, or if
            `block` is the null block. False if the hash belongs to other content.
        """
        if block is self.allocator.null:
            return True
        identity, block_hash = chain.identities[index], chain.hashes[index]
        allocator = self.allocator
        return (
            allocator.publish(block, identity, block_hash)
            or allocator.lookup(block_hash, identity) is not None
        )

    def stats(self) -> GroupStats:
        """Return the present figures."""
        allocator = self.allocator
        return GroupStats(
            kind=group_kind(self.spec),
            num_blocks=allocator.num_blocks,
            max_num_blocks=allocator.max_num_blocks,
            num_free=allocator.num_free,
            num_evictable=allocator.num_evictable,
            num_live=allocator.num_live,
            evictions=allocator.evictions,
            growths=self.growths,
            growth_refusals=self.growth_refusals,
        )
