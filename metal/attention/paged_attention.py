"""Attention that reads keys and values where they lie, in pages.

A kernel takes a tile of queries of one sequence, in decoding a single one, with all query heads
that share a key head: what it reads serves all of them. Where that leaves processors idle, the
context is cut into splits, whose results a second kernel joins. Long slices of a prompt are
another matter: their pages are gathered, for MLX's own attention has matrix units.
"""

from __future__ import annotations

import functools
from typing import Unpack

import mlx.core as mx

from ..runtime import dispatch
from . import paged_launch
from .mlx_attention import prefill_attention
from .paged_plan import Shape
from .paged_reference import Scoring, paged_decode_reference, paged_prefill_reference
from .pages import Layout, Pages, gather_pages

SHORT_SLICE = 16
"""Queries of a slice up to which its pages are read in place."""


def paged_decode(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    rows: mx.array,
    positions: mx.array,
    *,
    longest: int,
    **scoring: Unpack[Scoring],
) -> mx.array:
    """Attend one query a sequence to the sequence's keys, its own among them.

    Args:
        q: `[N, Hq, D]`.
        pages: The layer's pools.
        tables: Pages of all sequences, `[R, W]` int32. Tokens of an entry of 0 or less are
            not seen; entries behind a sequence's end are not read.
        rows: Row of each query's sequence in them, `[N]` int32.
        positions: Position of each query's token, `[N]` int32; one at less than 0 sees nothing.
        longest: No fewer tokens than the longest context has; best a power of two.
        **scoring: How keys are weighed.

    Returns:
        `[N, Hq, Dv]`; zeros for a query that sees nothing.
    """
    taken = _takes_kernel("paged_decode", paged_launch.shape_of(q, pages, scoring), pages)
    if not taken:
        pages.settle()
    attend = paged_decode_kernel if taken else paged_decode_reference
    return attend(q, pages, tables, rows, positions, longest=longest, **scoring)


def paged_decode_kernel(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    rows: mx.array,
    positions: mx.array,
    *,
    longest: int,
    **scoring: Unpack[Scoring],
) -> mx.array:
    """Attend in one launch, or two; see `paged_decode`."""
    shape = paged_launch.shape_of(q, pages, scoring)
    return paged_launch.attend(shape, q, pages, tables, rows, positions, longest, scoring)


def paged_prefill(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    row: mx.array,
    position: mx.array,
    *,
    start: int,
    **scoring: Unpack[Scoring],
) -> mx.array:
    """Attend consecutive queries of one sequence, causally, to the sequence's keys.

    Args:
        q: `[L, Hq, D]`.
        pages: The layer's pools; the queries' own keys are in them.
        tables: Pages of all sequences, `[R, W]` int32.
        row: Row of the sequence in them, `[1]` int32.
        position: Position of the first query, `[1]` int32.
        start: The same, as the host knows it.
        **scoring: How keys are weighed.

    Returns:
        `[L, Hq, Dv]`.
    """
    length = q.shape[0]
    if length == 1:
        longest = _bucket(start + 1)
        return paged_decode(q, pages, tables, row, position, longest=longest, **scoring)
    if length <= SHORT_SLICE:
        shape = paged_launch.shape_of(q, pages, scoring, length)
        if _takes_kernel("paged_prefill", shape, pages):
            return paged_prefill_kernel(q, pages, tables, row, position, start=start, **scoring)
    if scoring.get("sinks") is not None and scoring.get("softcap") is not None:
        dispatch.record("paged_prefill", "ops")
        pages.settle()
        return paged_prefill_reference(q, pages, tables, row, position, start=start, **scoring)
    return _attend_gathered(q, pages, tables, row, start, scoring)


def paged_prefill_kernel(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    row: mx.array,
    position: mx.array,
    *,
    start: int,
    **scoring: Unpack[Scoring],
) -> mx.array:
    """Attend in one launch, or two, to pages where they are; see `paged_prefill`."""
    shape = paged_launch.shape_of(q, pages, scoring, q.shape[0])
    longest = _bucket(start + q.shape[0])
    return paged_launch.attend(shape, q, pages, tables, row, position, longest, scoring)


def _bucket(num_tokens: int) -> int:
    return 1 << (num_tokens - 1).bit_length()


def _takes_kernel(operation: str, shape: Shape, pages: Pages) -> bool:
    unsupported = shape.unsupported
    if pages.keys.dtype != shape.dtype or pages.values.dtype != shape.dtype:
        unsupported = f"queries of {shape.dtype} do not go with pages of {pages.keys.dtype}"
    check = functools.partial(paged_launch.check, shape)
    return dispatch.takes_kernel(operation, shape, check, unsupported=unsupported)


def _attend_gathered(
    q: mx.array, pages: Pages, tables: mx.array, row: mx.array, start: int, scoring: Scoring
) -> mx.array:
    """Attend to contiguous copies of the keys and values that are in sight."""
    scale, window, sinks = scoring["scale"], scoring.get("window"), scoring.get("sinks")
    first_block = 0 if window is None else max(0, start - window + 1) // pages.size
    num_keys = start + q.shape[0] - first_block * pages.size
    keys, values = gather_pages(pages, tables, row, first_block=first_block, num_keys=num_keys)
    if sinks is not None:
        return _attend_with_sinks(q, keys, values, sinks, scale, window)
    cap = scoring.get("softcap")
    return prefill_attention(q, keys, values, scale=scale, softcap=cap, window=window)


def _attend_with_sinks(
    q: mx.array,
    keys: mx.array,
    values: mx.array,
    sinks: mx.array,
    scale: float,
    window: int | None,
) -> mx.array:
    dispatch.record("prefill_attention", "sdpa")
    mask, num_keys = "causal", keys.shape[1]
    if window is not None and window < num_keys:
        at = mx.arange(num_keys)
        queries = at[num_keys - q.shape[0] :, None]
        mask = (at <= queries) & (at > queries - window)
    out = mx.fast.scaled_dot_product_attention(
        q.swapaxes(0, 1)[None],
        keys[None],
        values[None],
        scale=scale,
        mask=mask,
        sinks=sinks.astype(q.dtype),
    )
    return out.squeeze(0).swapaxes(0, 1)


def _probe(
    dtype: mx.Dtype,
    group: int,
    size: int,
    dims: tuple[int, int],
    extras: bool,
    length: int | None = None,
    seed: int = 1,
) -> None:
    """Compare a shape of 2 key heads; `extras` are sinks and a bound of the scores."""
    shape = Shape(dtype, Layout(2, size, *dims), group, capped=extras, sunk=extras)
    paged_launch.check(shape if length is None else shape.tiled(length), seed)


dispatch.register("paged_decode", _probe, [(4, 16, (64, 64), False), (3, 8, (96, 64), True)])
dispatch.register(
    "paged_prefill",
    _probe,
    [(2, 16, (64, 64), False, 5), (1, 8, (128, 64), True, 3), (20, 8, (32, 32), False, 3)],
)
