"""Partition of decode rows by length."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.layer_spec import FullAttention, SlidingWindow
from neve.forward.decode_buckets import DecodeBucket, DecodeWave, similar_lengths

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


# -- windows -----------------------------------------------------------------------------


def seen(bucket: DecodeBucket, row: int, block_size: int) -> list[int]:
    """Return the absolute positions that a row of a bucket sees."""
    first = 0 if bucket.first is None else int(bucket.first.tolist()[row])  # type: ignore[arg-type, call-overload]
    visible = np.flatnonzero(np.array(bucket.mask)[row, 0, 0, 0] == 0)
    return [int(index) + first * block_size for index in visible]


@settings(deadline=None, max_examples=80)
@given(
    positions=st.lists(
        st.one_of(st.integers(0, 60), st.integers(0, 100_000)), min_size=1, max_size=5
    ),
    window=st.sampled_from([1, 2, 15, 16, 17, 40]),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_each_row_sees_its_window_and_nothing_else(
    positions: list[int], window: int, block_size: int
) -> None:
    """GR-3: from `position - window + 1` to its own, wherever its blocks begin."""
    wave = DecodeWave.of(positions, block_size, SlidingWindow(window, 1, 8))

    for bucket in wave.buckets:
        assert bucket.num_blocks <= -(-window // block_size) + 1
        for i, row in enumerate(bucket.rows.tolist()):  # type: ignore[union-attr, arg-type]
            position = positions[row]
            expected = list(range(max(0, position - window + 1), position + 1))
            assert seen(bucket, i, block_size) == expected


def test_rows_within_their_window_begin_at_block_0() -> None:
    """GR-3: while a window is not full it is the wave of full attention."""
    one = DecodeWave.of([3, 30], 16, SlidingWindow(40, 1, 8))
    other = DecodeWave.of([3, 30], 16, FullAttention(1, 8))

    for a, b in zip(one.buckets, other.buckets, strict=True):
        assert a.first is None
        assert b.first is None
        assert mx.array_equal(a.mask, b.mask)


def test_short_rows_beside_full_windows_keep_their_order() -> None:
    """PK-2: a row that has just begun is not padded to a window, and gets its own result."""
    wave = DecodeWave.of([5, 500, 9, 400], 16, SlidingWindow(64, 1, 8))
    order = mx.concatenate([bucket.rows for bucket in wave.buckets])

    assert [bucket.num_blocks for bucket in wave.buckets] == [5, 1]
    assert wave.restore is not None
    assert order[wave.restore].tolist() == [0, 1, 2, 3]
