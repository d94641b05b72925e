"""The rotating window against plain lists, and against the pages of the same tokens."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.layer_spec import SlidingWindow
from neve.errors import CacheMisuseError
from neve.pools.flat_window import FlatWindow
from neve.pools.layer_pool import LayerPool
from neve.pools.window_bytes import window_of_blocks

pytestmark = pytest.mark.mlx

HEADS, DIMS, VALUE_DIMS = 2, 3, 5


def tokens(start: int, length: int) -> tuple[mx.array, mx.array]:
    """Return keys `[L, Hk, D]` and values of positions, each element another number."""
    positions = mx.arange(start, start + length, dtype=mx.float32)[:, None, None]
    k = positions * 100 + mx.arange(HEADS * DIMS).reshape(1, HEADS, DIMS)
    v = positions * 100 + 50 + mx.arange(HEADS * VALUE_DIMS).reshape(1, HEADS, VALUE_DIMS)
    return k, v


def expected(start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    k, v = tokens(start, end - start)
    return np.array(k).swapaxes(0, 1), np.array(v).swapaxes(0, 1)


def make_window(window: int) -> FlatWindow:
    return FlatWindow(SlidingWindow(window, HEADS, DIMS, VALUE_DIMS))


def same(actual: tuple[mx.array, mx.array], rows: tuple[np.ndarray, np.ndarray]) -> bool:
    return all(np.array_equal(np.array(a), b) for a, b in zip(actual, rows, strict=True))


lengths = st.lists(st.sampled_from([1, 1, 2, 3, 7, 12]), min_size=1, max_size=8)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10), lengths)
def test_a_step_reads_what_its_tokens_see(window: int, steps: list[int]) -> None:
    """GR-3: the step's own tokens and `window - 1` before its first one, oldest first."""
    flat, end = make_window(window), 0
    for length in steps:
        flat.write(*tokens(end, length), end)
        first = max(0, end - window + 1)
        end += length

        assert same(flat.read(length), expected(first, end))
        assert same(flat.read(length), expected(first, end)), "layers that alias it read too"
        assert same(flat.snapshot(), expected(max(0, end - window), end))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10), lengths)
def test_what_is_held_does_not_grow_with_the_text(window: int, steps: list[int]) -> None:
    """GR-3: a window and the newest step at most."""
    flat, end = make_window(window), 0
    for length in steps:
        flat.write(*tokens(end, length), end)
        end += length

        assert [a.shape[1] for a in flat.arrays()] == [min(end, window + length)] * 2


@pytest.mark.parametrize("position", [0, 3, 5])
def test_a_window_is_written_at_its_end_and_nowhere_else(position: int) -> None:
    """GR-6: rows behind a gap or over others would be another text's; both are refused."""
    flat = make_window(4)
    flat.write(*tokens(0, 4), 0)

    with pytest.raises(CacheMisuseError, match="it ends at 4"):
        flat.write(*tokens(position, 1), position)
    assert same(flat.snapshot(), expected(0, 4))


def test_an_empty_window_has_nothing_to_read() -> None:
    """GR-6: reading before the first write is an error; there are no arrays to evaluate."""
    flat = make_window(4)

    assert flat.arrays() == ()
    with pytest.raises(CacheMisuseError, match="nothing was written"):
        flat.read(1)
    with pytest.raises(CacheMisuseError, match="nothing was written"):
        flat.snapshot()


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 4),
    st.sampled_from([2, 4]),
    st.integers(1, 9),
    st.sampled_from([mx.float32, mx.bfloat16]),
    st.randoms(use_true_random=False),
)
def test_a_paged_window_holds_the_same_rows(
    window_blocks: int, size: int, num_blocks: int, dtype: mx.Dtype, random: object
) -> None:
    """SD-8: at any boundary the two representations are the same rows, bit for bit."""
    spec = SlidingWindow(window_blocks * size, HEADS, DIMS, VALUE_DIMS)
    boundary = num_blocks * size
    k, v = (x.astype(dtype) for x in tokens(0, boundary))
    flat = FlatWindow(spec)
    flat.write(k, v, 0)
    pool = LayerPool(spec, 1, num_blocks + 1, size, dtype)
    ids = list(range(1, num_blocks + 1))
    random.shuffle(ids)  # type: ignore[attr-defined]
    places = mx.array(ids)[mx.arange(boundary) // size]
    pool.write(0, k, v, pool.slots(places, mx.arange(boundary) % size))
    first = spec.first_visible(boundary) // size

    pieces = window_of_blocks(pool.read_blocks(ids[first:]), HEADS)

    assert (num_blocks - first) * size == spec.rows_at(boundary)
    for piece, rows in zip(pieces, flat.snapshot(), strict=True):
        assert rows.shape[:2] == (HEADS, spec.rows_at(boundary))
        plain = mx.contiguous(rows).view(mx.uint16 if dtype.size == 2 else mx.uint32)
        assert bytes(piece) == np.array(plain).tobytes()


def test_the_widest_window_is_read():
    """GR-3: a window may be as wide as positions go; rows beyond those held are none."""
    flat = make_window(2**31 - 1)
    flat.write(*tokens(0, 5), 0)
    flat.write(*tokens(5, 7), 5)

    assert same(flat.read(7), expected(0, 12))
    assert same(flat.snapshot(), expected(0, 12))
