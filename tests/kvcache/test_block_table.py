from __future__ import annotations

from collections.abc import Sequence

import pytest

from neve.ids import NULL_BLOCK, BlockId
from neve.kvcache.block import Block
from neve.kvcache.block_table import BlockTable, blocks_for


def make_blocks(ids: Sequence[int]) -> list[Block]:
    return [Block(BlockId(i)) for i in ids]


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    """KV-1: a partial block takes a whole one."""
    assert blocks_for(tokens, 16) == blocks


def test_missing_blocks() -> None:
    """KV-1: a table lacks what its positions need beyond what it has, never less than none."""
    table = BlockTable(4, Block(NULL_BLOCK))
    table.extend(make_blocks([5, 3]))

    assert [table.num_missing(n) for n in (0, 8, 9, 13)] == [0, 0, 1, 2]
    assert (len(table), table.ids) == (2, [5, 3])


def test_the_mirror_is_told_only_what_is_new() -> None:
    """PK-2: each block goes to the device once."""
    table = BlockTable(4, Block(NULL_BLOCK))
    table.extend(make_blocks([5, 3]))

    assert table.take_unsynced() == [(0, 5), (1, 3)]
    assert table.take_unsynced() == []
    table.extend(make_blocks([9]))
    assert table.take_unsynced() == [(2, 9)]
    assert table.num_synced == 3


def test_taking_all_empties_the_table() -> None:
    """KV-2: who gives its blocks back names them no more."""
    table = BlockTable(4, Block(NULL_BLOCK))
    table.extend(make_blocks([5, 3]))
    table.take_unsynced()

    assert [b.id for b in table.take_all()] == [5, 3]
    assert (table.ids, table.num_synced, table.take_unsynced()) == ([], 0, [])
