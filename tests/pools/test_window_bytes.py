from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.pools.window_bytes import blocks_of_window, window_of_blocks

ITEM_BYTES = 2


def page(layer: int, part: int, block: int, heads: int, size: int, dims: int) -> np.ndarray:
    """Return `[Hk, S, D]` whose elements say where they belong."""
    shape = (heads, size, dims)
    places = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
    return places + np.uint16(1009 * layer + 4001 * part + 101 * block)


def make_blocks(
    layers: int, blocks: int, heads: int, size: int, dims: tuple[int, int]
) -> list[list[np.ndarray]]:
    """Return per block the keys and values of each layer in turn."""
    return [
        [
            page(layer, part, block, heads, size, dims[part])
            for layer in range(layers)
            for part in range(2)
        ]
        for block in range(blocks)
    ]


def views(blocks: list[list[np.ndarray]]) -> list[list[memoryview]]:
    return [[memoryview(piece.tobytes()) for piece in block] for block in blocks]


geometry = st.tuples(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 5),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)


@settings(deadline=None)
@given(geometry)
def test_rows_of_a_head_lie_side_by_side(
    sizes: tuple[int, int, int, int, tuple[int, int]],
) -> None:
    """SD-3: pages `[Hk, S, D]` become `[Hk, rows, D]`, keys then values, oldest first."""
    blocks = make_blocks(*sizes)
    pieces = window_of_blocks(views(blocks), sizes[2])

    assert len(pieces) == 2 * sizes[0]
    for index, piece in enumerate(pieces):
        expected = np.concatenate([block[index] for block in blocks], axis=1)
        assert (piece.format, piece.ndim) == ("B", 1)
        assert bytes(piece) == expected.tobytes()


@settings(deadline=None)
@given(geometry)
def test_there_and_back_is_the_same(
    sizes: tuple[int, int, int, int, tuple[int, int]],
) -> None:
    """SD-3: a window that was read can be written to as many blocks, byte for byte."""
    blocks = views(make_blocks(*sizes))
    pieces = window_of_blocks(blocks, sizes[2])

    back = blocks_of_window(pieces, sizes[2], sizes[1])

    assert [bytes(block) for block in back] == [b"".join(block) for block in blocks]
    assert {(block.format, block.ndim) for block in back} == {("B", 1)}


def test_the_newest_blocks_of_a_window_are_the_last() -> None:
    """SD-1: whoever has the first blocks of a window in memory needs the last of its pieces."""
    blocks = make_blocks(2, 3, 2, 4, (3, 5))
    pieces = window_of_blocks(views(blocks), 2)

    (last,) = blocks_of_window(pieces, 2, 3)[-1:]

    assert bytes(last) == b"".join(piece.tobytes() for piece in blocks[2])


@pytest.mark.parametrize("num_bytes", [5, 7])
def test_bytes_that_fill_no_whole_rows_are_refused(num_bytes: int) -> None:
    """SD-7: a piece of another length than the geometry's is an error, never a window."""
    with pytest.raises(ValueError, match="reshape"):
        blocks_of_window([memoryview(bytes(num_bytes))], 2, 3)
