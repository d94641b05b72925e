"""Conversion of a window's keys and values between pages and the format on disk.

On disk a window is `[1, Hk, rows, D]`. In a pool its rows are in pages `[Hk, S, D]`. The
conversion only reorders bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def window_of_blocks(blocks: Sequence[Sequence[memoryview]], kv_heads: int) -> list[memoryview]:
    """Return keys, then values, of each layer, `[Hk, rows, D]`, oldest row first.

    Args:
        blocks: The window's blocks in logical order, as `LayerPool.read_blocks` returns them.
        kv_heads: `Hk`.
    """
    pieces = zip(*blocks, strict=True)
    return [memoryview(_by_head(pages, kv_heads).data).cast("B") for pages in pieces]


def _by_head(pages: Sequence[memoryview], kv_heads: int) -> NDArray[Any]:
    rows = np.stack([np.frombuffer(page, np.uint8).reshape(kv_heads, -1) for page in pages])
    return np.ascontiguousarray(rows.swapaxes(0, 1))


def blocks_of_window(
    pieces: Sequence[memoryview], kv_heads: int, num_blocks: int
) -> list[memoryview]:
    """Return the bytes of each block of a window, as `LayerPool.write_blocks` takes them.

    Args:
        pieces: The result of `window_of_blocks`.
        kv_heads: `Hk`.
        num_blocks: Blocks of the window; rows fill every block.
    """
    pages = [_by_block(piece, kv_heads, num_blocks) for piece in pieces]
    return [memoryview(block.data).cast("B") for block in np.concatenate(pages, axis=1)]


def _by_block(piece: memoryview, kv_heads: int, num_blocks: int) -> NDArray[Any]:
    heads = np.frombuffer(piece, np.uint8).reshape(kv_heads, num_blocks, -1)
    return heads.swapaxes(0, 1).reshape(num_blocks, -1)
