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

    assert table.take_changes() == ((0, 5), (1, 3))
    assert table.take_changes() == ()
    table.extend(make_blocks([9]))
    assert table.take_changes() == ((2, 9),)
    assert table.num_synced == 3


def test_taking_all_empties_the_table() -> None:
    """KV-2: who gives its blocks back names them no more."""
    table = BlockTable(4, Block(NULL_BLOCK))
    table.extend(make_blocks([5, 3]))
    table.take_changes()

    assert [b.id for b in table.take_all()] == [5, 3]
    assert (table.ids, table.num_synced, table.take_changes()) == ([], 0, ())


# -- null entries ------------------------------------------------------------------------


def make_table(ids: Sequence[int]) -> BlockTable:
    table = BlockTable(4, Block(NULL_BLOCK))
    table.extend(make_blocks(ids))
    return table


def test_an_expired_entry_is_null_and_no_index_changes() -> None:
    """GR-3: position `p` stays at index `p // S`, whatever a window has moved past."""
    table = make_table([5, 3, 9, 7])

    assert [block.id for block in table.expire(2)] == [5, 3]
    assert (table.ids, len(table)) == ([0, 0, 9, 7], 4)
    assert (table.num_expired, table.num_held) == (2, 2)
    assert table.num_missing(17) == 1


def test_blocks_expire_once() -> None:
    """GR-3: each reference is given up once; a window never moves back."""
    table = make_table([5, 3, 9])

    assert [len(table.expire(end)) for end in (1, 1, 0, 3, 3, 9)] == [1, 0, 0, 2, 0, 0]
    assert (table.num_expired, table.num_held) == (3, 0)


def test_a_window_beyond_the_table_leaves_it_as_long_as_it_is() -> None:
    """GR-3: what is not there cannot expire; the entries behind come later."""
    table = make_table([5, 3])
    table.expire(7)

    assert (len(table), table.num_expired) == (2, 2)
    table.extend_null(3)
    table.extend(make_blocks([9]))
    assert (table.ids, table.num_expired, table.num_held) == ([0] * 5 + [9], 5, 1)


def test_null_entries_stand_before_all_others() -> None:
    """GR-3: a hole behind a block that is held would be read."""
    table = make_table([5])

    with pytest.raises(AssertionError, match="first ones"):
        table.extend_null(1)


def test_the_mirror_is_told_of_entries_that_it_knows_by_another_name() -> None:
    """PK-2: an entry that expires after it was sent is sent again, one that was not is not."""
    table = make_table([5, 3, 9])
    table.take_changes()
    table.extend(make_blocks([7]))
    table.expire(2)

    assert table.take_changes() == ((0, 0), (1, 0), (3, 7))
    assert table.take_changes() == ()
    table.extend(make_blocks([4]))
    table.expire(5)
    assert table.take_changes() == ((2, 0), (3, 0), (4, 0))


def test_only_real_blocks_are_given_back() -> None:
    """KV-2: the null block has no reference to give."""
    table = make_table([5, 3, 9])
    table.take_changes()
    table.expire(1)

    assert [block.id for block in table.take_all()] == [3, 9]
    assert (len(table), table.num_expired, table.num_synced) == (0, 0, 0)
    assert table.take_changes() == ()
