"""Partition of decode rows by length."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.forward.decode_buckets import DecodeWave, similar_lengths

pytestmark = pytest.mark.mlx

lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=32)


@settings(deadline=None)
@given(lengths)
def test_no_row_is_padded_to_more_than_twice_its_length(num_blocks: list[int]) -> None:
    """PK-2: a long row makes no short one gather as many blocks as it has."""
    buckets = similar_lengths(num_blocks)

    assert sorted(row for rows in buckets for row in rows) == list(range(len(num_blocks)))
    for rows in buckets:
        sizes = [num_blocks[row] for row in rows]
        assert max(sizes) <= 2 * min(sizes)


@settings(deadline=None)
@given(lengths)
def test_there_are_few_buckets(num_blocks: list[int]) -> None:
    """PK-2: the number of buckets grows with the logarithm of the spread."""
    spread = max(num_blocks) / min(num_blocks)

    assert 2 ** (len(similar_lengths(num_blocks)) - 1) <= spread


def test_rows_of_one_bucket_keep_their_order() -> None:
    """Rows of similar length are neither permuted nor restored."""
    wave = DecodeWave.of([100, 90, 110], 16)

    assert [b.rows.tolist() for b in wave.buckets] == [[0, 1, 2]]
    assert wave.restore is None
    assert wave.buckets[0].num_blocks == 7


def test_restore_undoes_the_partition() -> None:
    """The step's order comes back after the buckets were attended."""
    wave = DecodeWave.of([3, 500, 5, 400], 16)
    order = mx.concatenate([bucket.rows for bucket in wave.buckets])

    assert order.tolist() == [1, 3, 0, 2]
    assert wave.restore is not None
    assert order[wave.restore].tolist() == [0, 1, 2, 3]


def test_masks_show_what_was_written() -> None:
    """A row sees the positions up to its own."""
    (bucket,) = DecodeWave.of([0, 17], 16).buckets
    visible = (bucket.mask[:, 0, 0, 0] == 0).sum(axis=-1)

    assert visible.tolist() == [1, 18]


def test_a_step_without_decode_rows_has_no_bucket() -> None:
    """Nothing to decode, nothing to attend."""
    assert DecodeWave.of([], 16).buckets == ()
