from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.ids import NULL_BLOCK, BlockId
from neve.kvcache.block import Block
from neve.kvcache.block_table import BlockTable
from neve.pools.device_tables import DeviceTables

pytestmark = pytest.mark.mlx

NUM_ROWS, WIDTH = 4, 6

cells = st.tuples(st.integers(0, NUM_ROWS - 1), st.integers(0, WIDTH - 1))
updates = st.dictionaries(cells, st.integers(0, 999), max_size=8)


@settings(deadline=None, max_examples=30)
@given(
    steps=st.lists(updates, max_size=5),
    rows=st.lists(st.integers(0, NUM_ROWS - 1), min_size=1, max_size=6),
    width=st.integers(1, WIDTH),
    places=st.lists(cells, min_size=1, max_size=6),
)
def test_the_mirror_is_a_plain_table(
    steps: list[dict[tuple[int, int], int]],
    rows: list[int],
    width: int,
    places: list[tuple[int, int]],
) -> None:
    """SC-1: after any updates, rows and entries are those of a table in plain memory."""
    tables, expected = DeviceTables(NUM_ROWS, WIDTH), np.zeros((NUM_ROWS, WIDTH), np.int32)
    for update in steps:
        tables.update((row, index, block) for (row, index), block in update.items())
        for (row, index), block in update.items():
            expected[row, index] = block
    at = [mx.array(column) for column in zip(*places, strict=True)]

    assert (np.array(tables.rows(mx.array(rows), width)) == expected[rows, :width]).all()
    assert tables.blocks_at(*at).tolist() == [expected[place] for place in places]


def test_entries_are_int32() -> None:
    """SC-1: block ids index pools, on every device."""
    tables = DeviceTables(NUM_ROWS, WIDTH)
    tables.update([(1, 2, 7)])

    assert tables.rows(mx.array([1]), WIDTH).dtype == mx.int32
    assert tables.blocks_at(mx.array([1]), mx.array([2])).dtype == mx.int32


def test_what_was_read_before_an_update_stays_as_it_was() -> None:
    """SC-9: a step that is built but not computed keeps the table it was built with."""
    tables = DeviceTables(NUM_ROWS, WIDTH)
    tables.update([(0, 0, 5)])
    earlier = tables.rows(mx.array([0]), 1)
    tables.update([(0, 0, 9)])

    assert earlier.tolist() == [[5]]
    assert tables.rows(mx.array([0]), 1).tolist() == [[9]]


@settings(deadline=None, max_examples=30)
@given(
    columns=st.lists(st.integers(0, 8), min_size=NUM_ROWS, max_size=NUM_ROWS),
    rows=st.lists(st.integers(0, NUM_ROWS - 1), min_size=1, max_size=6),
    width=st.integers(1, WIDTH),
)
def test_rows_may_begin_anywhere(columns: list[int], rows: list[int], width: int) -> None:
    """GR-3: each row from its own first entry on; what lies behind the end is masked anyway."""
    tables = DeviceTables(NUM_ROWS, WIDTH)
    cells = [(row, index) for row in range(NUM_ROWS) for index in range(WIDTH)]
    tables.update((row, index, 10 * row + index) for row, index in cells)
    first = [columns[row] for row in rows]

    actual = tables.rows(mx.array(rows), width, mx.array(first))

    assert actual.shape == (len(rows), width)
    assert actual.tolist() == [
        [10 * row + min(begin + i, WIDTH - 1) for i in range(width)]
        for row, begin in zip(rows, first, strict=True)
    ]


def test_a_slice_is_a_table_of_its_own() -> None:
    """GR-3: a prefill slice reads the entries of its window and no others."""
    tables = DeviceTables(NUM_ROWS, WIDTH)
    tables.update((1, index, 20 + index) for index in range(WIDTH))

    assert tables.slice(1, 2, 5).tolist() == [[22, 23, 24]]
    assert tables.slice(1, 0, WIDTH).tolist() == [list(range(20, 20 + WIDTH))]


lives = st.lists(
    st.tuples(st.sampled_from(["grow", "expire", "sync", "restore", "end"]), st.integers(0, 5)),
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(life=lives)
def test_the_mirror_follows_a_table_through_its_life(life: list[tuple[str, int]]) -> None:
    """GR-3: after each hand-over the device's entries are the table's, null ones included."""
    mirror, null, next_id = DeviceTables(1, 200), Block(NULL_BLOCK), 1
    table = BlockTable(4, null)
    for operation, n in life:
        match operation:
            case "grow":
                table.extend([Block(BlockId(next_id + i)) for i in range(n)])
                next_id += n
            case "expire":
                table.expire(table.num_expired + n)
            case "restore":
                table.expire(len(table))
                table.extend_null(n)
                table.extend([Block(BlockId(next_id))])
                next_id += 1
            case "end":
                table.take_all()
                table = BlockTable(4, null)
            case _:
                mirror.update((0, index, block) for index, block in table.take_changes())
                entries = np.array(mirror.slice(0, 0, 200))[0]
                assert entries[: len(table)].tolist() == table.ids
        assert len(table) < 200
