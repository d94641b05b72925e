"""The base of managers for groups that keep keys and values in blocks."""

from __future__ import annotations

from collections.abc import Sequence

from .block_group import BlockGroup
from .manager import Found
from .sequence import Sequence as CacheSequence


class BlockManager:
    """Keeps every block of a sequence until the sequence ends. Window managers override this.

    Attributes:
        groups: The groups of the kind, at least one.
    """

    def __init__(self, groups: Sequence[BlockGroup]) -> None:
        self.groups = groups

    def attach(self, sequence: CacheSequence, found: Found) -> None:
        """Share the prefix's blocks; entries that a window has passed become null."""
        for group in self.groups:
            blocks = group.real_blocks(found.blocks[group.index])
            group.share(sequence.tables[group.index], found.num_blocks, blocks)

    def make_room(self, sequence: CacheSequence, end: int) -> None:
        """Grow pools until the missing blocks are free or evictable."""
        for group in self.groups:
            group.make_room(sequence.tables[group.index].num_missing(end))

    def reserve(self, sequence: CacheSequence, end: int) -> None:
        """Allocate and append the missing blocks."""
        for group in self.groups:
            table = sequence.tables[group.index]
            table.extend(group.allocator.allocate(table.num_missing(end)))

    def make_restore_room(self, sequence: CacheSequence, end: int) -> None:
        """Do the same as `make_room`: a restore fills every block."""
        self.make_room(sequence, end)

    def reserve_restore(self, sequence: CacheSequence, end: int) -> None:
        """Do the same as `reserve`."""
        self.reserve(sequence, end)

    def publish(self, sequence: CacheSequence, index: int) -> bool:
        """Publish a block in every group."""
        return all(
            group.publish(sequence.tables[group.index].blocks[index], sequence.chain, index)
            for group in self.groups
        )

    def commit(self, sequence: CacheSequence, first: int) -> None:
        """Do nothing: published blocks need no further bookkeeping."""

    def check_rewind(self, sequence: CacheSequence, end: int) -> None:
        """Allow every rewind: the blocks stay in the table and are overwritten."""

    def rewind(self, sequence: CacheSequence) -> None:
        """Do nothing: the next step overwrites the positions from the cursor on."""

    def expire(self, sequence: CacheSequence) -> None:
        """Do nothing: later tokens see every position."""

    def release(self, sequence: CacheSequence) -> None:
        """Drop the references; published blocks stay until eviction."""
        for group in self.groups:
            group.allocator.free(sequence.tables[group.index].take_all())

    def clear(self) -> None:
        """Do nothing: the prefix table belongs to the allocator."""
