"""Where one sequence's tokens lie in one group."""

from __future__ import annotations

from collections.abc import Sequence

from ..ids import BlockId
from .block import Block


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold `num_tokens`."""
    return -(-num_tokens // block_size)


class BlockTable:
    """One sequence's blocks in one group, in logical order; it only grows.

    Position `p` lies in `blocks[p // S]` at offset `p % S`.

    Attributes:
        blocks: The blocks; the sequence holds one reference to each.
        num_synced: How many leading ids the device's mirror has been given.
    """

    __slots__ = ("_block_size", "blocks", "num_synced")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.blocks: list[Block] = []
        self.num_synced = 0

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def ids(self) -> list[BlockId]:
        """The blocks' ids, collected anew; O(blocks), so not for every step."""
        return [block.id for block in self.blocks]

    def num_missing(self, num_tokens: int) -> int:
        """Return how many more blocks positions `[0, num_tokens)` need."""
        return max(0, blocks_for(num_tokens, self._block_size) - len(self.blocks))

    def extend(self, blocks: Sequence[Block]) -> None:
        """Append blocks whose references the sequence holds from now on."""
        self.blocks.extend(blocks)

    def take_unsynced(self) -> list[tuple[int, BlockId]]:
        """Return `(index, id)` of the blocks that the device's mirror lacks; now it has."""
        start = self.num_synced
        if start == len(self.blocks):
            return []
        self.num_synced = len(self.blocks)
        return [(start + i, block.id) for i, block in enumerate(self.blocks[start:])]

    def take_all(self) -> list[Block]:
        """Empty the table and return its blocks, with their references."""
        blocks, self.blocks = self.blocks, []
        self.num_synced = 0
        return blocks
