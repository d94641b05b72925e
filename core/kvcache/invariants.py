"""Invariants between the tables of sequences and the blocks of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from . import sequence as cache_sequence
from .block_group import BlockGroup


def check_blocks(
    groups: Sequence[BlockGroup], sequences: Sequence[cache_sequence.Sequence]
) -> None:
    """Verify all invariants; O(blocks).

    Raises:
        AssertionError: An invariant is broken, by a fault of this room.
    """
    for group in groups:
        group.allocator.check()
        tables = [sequence.tables[group.index] for sequence in sequences]
        spare = [sequence.spare.get(group.index, []) for sequence in sequences]
        held = [*(group.real_blocks(table.blocks) for table in tables), *spare]
        named = Counter(block for blocks in held for block in blocks)
        assert all(block.ref_count == count for block, count in named.items())
        assert len(named) == group.allocator.num_live, "live blocks are named by tables"
        for sequence in sequences:
            _check_table(group, sequence)
    for sequence in sequences:
        assert 0 <= sequence.frontier <= min(sequence.cursor, len(sequence.tokens))
        assert sequence.num_published <= sequence.frontier // sequence.chain.block_size


def _check_table(group: BlockGroup, sequence: cache_sequence.Sequence) -> None:
    table = sequence.tables[group.index]
    committed = sequence.frontier // group.allocator.block_size
    if not sequence.spare:
        assert table.num_missing(sequence.cursor) == 0, "tables reach the cursor"
    writable = table.blocks[max(committed, table.num_expired) :]
    assert all(block.ref_count == 1 for block in writable), "writable blocks have one reference"
    assert all(block.hash is None for block in writable), "writable blocks are unpublished"
    assert table.num_expired <= group.first_needed(sequence.cursor), "the window is held"
    gone = table.blocks[: table.num_expired]
    assert all(block is group.allocator.null for block in gone), "expired entries are null"
