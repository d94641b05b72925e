"""Groups whose layers see every position."""

from __future__ import annotations

from .block import Block
from .block_group import BlockGroup
from .block_identity import PrefixChain
from .block_manager import BlockManager
from .manager import Found


class FullManager(BlockManager):
    """Keeps every block of a sequence until the sequence ends. Implements `manager.Manager`.

    A model whose layers are all recurrent has one group without layers and without a pool.
    The blocks of this group count tokens and identify prefixes.
    """

    def find(self, chain: PrefixChain, limit: int) -> Found:
        """Return the longest run of published blocks from block 0 on, in every group."""
        found = {group.index: _leading_blocks(group, chain, limit) for group in self.groups}
        shortest = min(len(blocks) for blocks in found.values())
        return Found(shortest, {i: blocks[:shortest] for i, blocks in found.items()})


def _leading_blocks(group: BlockGroup, chain: PrefixChain, limit: int) -> list[Block]:
    found: list[Block] = []
    for index in range(limit):
        block = group.lookup(chain, index)
        if block is None:
            break
        found.append(block)
    return found
