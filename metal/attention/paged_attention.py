"""Attention that reads keys and values in their pages.

A threadgroup computes a tile of queries of one sequence, in decoding a single query, with all
query heads that share a key head: each key is read once for all of them. If that leaves
processors idle, contexts are cut into splits, and a second kernel combines the results. Long
slices of a prompt gather their pages instead, because MLX's own attention uses matrix units.
"""

from __future__ import annotations

import functools

import mlx.core as mx

from ..runtime import dispatch
from . import paged_launch
from .head_shape import Slots
from .mlx_attention import prefill_attention
from .paged_plan import Shape
from .paged_reference import paged_decode_reference
from .pages import Layout, Pages, gather_pages
from .scoring import Scoring

SHORT_SLICE = 16
"""Most queries of a slice whose pages are read in place."""


def paged_decode(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    rows: mx.array,
    positions: mx.array,
    scoring: Scoring,
    *,
    longest: int,
    window: int | None = None,
) -> mx.array:
    """Attend one query of each sequence to the keys of the sequence, including its own.

    Args:
        q: `[N, Hq, D]`.
        pages: The layer's pools.
        tables: Pages of all sequences, `[R, W]` int32. Tokens of entries of 0 or less are
            invisible; entries after the end of a sequence are not read.
        rows: Row of `tables` of each query, `[N]` int32.
        positions: Position of each query, `[N]` int32; a query at less than 0 sees nothing.
        scoring: Scale, softcap and sinks.
        longest: Upper bound of the context lengths in tokens, preferably a power of two.
        window: Keys that a query sees, its own included; None for all before it.

    Returns:
        `[N, Hq, Dv]`; zeros for a query that sees nothing.
    """
    taken = _takes_kernel("paged_decode", paged_launch.shape_of(q, pages, scoring), pages)
    if not taken:
        pages.settle()
    attend = paged_decode_kernel if taken else paged_decode_reference
    return attend(q, pages, tables, rows, positions, scoring, longest=longest, window=window)


def paged_decode_kernel(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    rows: mx.array,
    positions: mx.array,
    scoring: Scoring,
    *,
    longest: int,
    window: int | None = None,
) -> mx.array:
    """Compute `paged_decode` in one launch, or two."""
    shape = paged_launch.shape_of(q, pages, scoring)
    slots = Slots(tables, rows, positions)
    return paged_launch.attend(shape, q, pages, slots, longest, scoring, window)


def paged_prefill(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    row: mx.array,
    position: mx.array,
    scoring: Scoring,
    *,
    start: int,
    window: int | None = None,
) -> mx.array:
    """Attend consecutive queries of one sequence causally to the keys of the sequence.

    Args:
        q: `[L, Hq, D]`.
        pages: The layer's pools, which hold the keys of the queries as well.
        tables: Pages of all sequences, `[R, W]` int32.
        row: Row of `tables` of the sequence, `[1]` int32.
        position: Position of the first query, `[1]` int32.
        scoring: Scale, softcap and sinks.
        start: The same position as a Python integer.
        window: Keys that a query sees, its own included; None for all before it.

    Returns:
        `[L, Hq, Dv]`.
    """
    length, at = q.shape[0], (tables, row, position)
    if length == 1:
        longest = _bucket(start + 1)
        return paged_decode(q, pages, *at, scoring, longest=longest, window=window)
    if length <= SHORT_SLICE:
        shape = paged_launch.shape_of(q, pages, scoring, length)
        if _takes_kernel("paged_prefill", shape, pages):
            return paged_prefill_kernel(q, pages, *at, scoring, start=start, window=window)
    return _attend_gathered(q, pages, tables, row, start, scoring, window)


def paged_prefill_kernel(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    row: mx.array,
    position: mx.array,
    scoring: Scoring,
    *,
    start: int,
    window: int | None = None,
) -> mx.array:
    """Compute `paged_prefill` on pages in place, in one launch or two."""
    shape = paged_launch.shape_of(q, pages, scoring, q.shape[0])
    longest = _bucket(start + q.shape[0])
    slots = Slots(tables, row, position)
    return paged_launch.attend(shape, q, pages, slots, longest, scoring, window)


def _bucket(num_tokens: int) -> int:
    return 1 << (num_tokens - 1).bit_length()


def _takes_kernel(operation: str, shape: Shape, pages: Pages) -> bool:
    unsupported = shape.unsupported
    if pages.keys.dtype != shape.dtype or pages.values.dtype != shape.dtype:
        unsupported = f"queries are {shape.dtype}, pages are {pages.keys.dtype}"
    check = functools.partial(paged_launch.check, shape)
    return dispatch.takes_kernel(operation, shape, check, unsupported=unsupported)


def _attend_gathered(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    row: mx.array,
    start: int,
    scoring: Scoring,
    window: int | None,
) -> mx.array:
    """Attend to contiguous copies of the visible keys and values."""
    first_block = 0 if window is None else max(0, start - window + 1) // pages.size
    num_keys = start + q.shape[0] - first_block * pages.size
    keys, values = gather_pages(pages, tables, row, first_block=first_block, num_keys=num_keys)
    return prefill_attention(q, keys, values, scoring, window=window)


def _probe(
    dtype: mx.Dtype,
    group: int,
    size: int,
    dims: tuple[int, int],
    extras: bool,
    length: int | None = None,
    seed: int = 1,
) -> None:
    """Compare a shape with 2 key heads; `extras` are sinks and a softcap."""
    shape = Shape(dtype, Layout(2, size, *dims), group, capped=extras, sunk=extras)
    paged_launch.check(shape if length is None else shape.tiled(length), seed)


dispatch.register("paged_decode", _probe, [(4, 16, (64, 64), False), (3, 8, (96, 64), True)])
dispatch.register(
    "paged_prefill",
    _probe,
    [(2, 16, (64, 64), False, 5), (1, 8, (128, 64), True, 3), (20, 8, (32, 32), False, 3)],
)
