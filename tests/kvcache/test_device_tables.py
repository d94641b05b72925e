from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.kvcache.device_tables import DeviceTables

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
