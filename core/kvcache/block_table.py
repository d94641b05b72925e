"""The block table of one sequence in one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..ids import BlockId
from .block import Block

TableChanges: TypeAlias = tuple[tuple[int, BlockId], ...]
"""`(index, block id)` of table entries that changed."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold `num_tokens`."""
    return -(-num_tokens // block_size)


class BlockTable:
    """One sequence's blocks in one group, in absolute logical order.

    Position `p` is in `blocks[p // S]` at offset `p % S`. The null block replaces blocks that
    a window has moved past, so indices never change.

    Attributes:
        blocks: The blocks; the sequence holds one reference to each one but the null block.
        num_expired: Number of leading entries that are the null block.
        num_synced: Number of leading ids that the device's copy has received.
    """

    __slots__ = ("_block_size", "_null", "_renamed", "blocks", "num_expired", "num_synced")

    def __init__(self, block_size: int, null: Block) -> None:
        """Make an empty table.

        Args:
            block_size: Tokens of a block.
            null: The group's null block.
        """
        self._block_size = block_size
        self._null = null
        self._renamed: list[tuple[int, BlockId]] = []  # not yet on the device
        self.blocks: list[Block] = []
        self.num_expired = 0
        self.num_synced = 0

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def ids(self) -> list[BlockId]:
        """The blocks' ids, collected anew; O(blocks), so not for every step."""
        return [block.id for block in self.blocks]

    @property
    def num_held(self) -> int:
        """Entries that are not the null block."""
        return len(self.blocks) - self.num_expired

    def num_missing(self, num_tokens: int) -> int:
        """Return how many more blocks positions `[0, num_tokens)` need."""
        return max(0, blocks_for(num_tokens, self._block_size) - len(self.blocks))

    def extend(self, blocks: Sequence[Block]) -> None:
        """Append blocks; the sequence takes over one reference to each."""
        self.blocks.extend(blocks)

    def extend_null(self, num_blocks: int) -> None:
        """Append null entries to a table that holds no other block."""
        assert not self.num_held, "a table's null entries are its first ones"
        self.blocks.extend([self._null] * num_blocks)
        self.num_expired = len(self.blocks)

    def expire(self, end: int) -> list[Block]:
        """Replace the blocks before index `end` by null; return them with their references."""
        first, end = self.num_expired, min(end, len(self.blocks))
        if end <= first:
            return []
        expired = self.blocks[first:end]
        self.blocks[first:end] = [self._null] * (end - first)
        self._renamed += [(i, self._null.id) for i in range(first, min(end, self.num_synced))]
        self.num_expired = end
        return expired

    def take_changes(self) -> TableChanges:
        """Return the changes since the last call and count them as sent to the device."""
        start, end = self.num_synced, len(self.blocks)
        if start == end and not self._renamed:
            return ()
        renamed, self._renamed, self.num_synced = self._renamed, [], end
        return (*renamed, *((start + i, b.id) for i, b in enumerate(self.blocks[start:])))

    def take_all(self) -> list[Block]:
        """Empty the table and return its blocks with their references."""
        blocks, self.blocks = self.blocks[self.num_expired :], []
        self._renamed = []
        self.num_expired = self.num_synced = 0
        return blocks
