"""Decoding of a layer from projections to attention, in one launch."""

from __future__ import annotations

import functools
from typing import Literal

import attrs
import mlx.core as mx

from ..elementwise.norms import ProbeNorm
from ..runtime import dispatch, launch
from . import paged_launch, paged_plan
from .head_shape import HeadShape, Making, Norms, Slots, Turns, weights_of
from .heads import prepare_heads, prepare_heads_reference
from .paged_attention import paged_decode
from .paged_plan import Shape
from .paged_reference import paged_decode_reference
from .pages import Layout, Pages, random_pages
from .scoring import Scoring


def decode_projected(
    projected: mx.array,
    pages: Pages,
    slots: Slots,
    turns: Turns | None,
    scoring: Scoring,
    *,
    shape: HeadShape,
    norms: Norms = (None, None, None),
    longest: int,
    window: int | None = None,
) -> tuple[mx.array, mx.array]:
    """Make heads of one token of each sequence, store its key and value if it has any, attend.

    Arguments that the one launch does not support take two, `prepare_heads` and `paged_decode`.

    Args:
        projected: `[N, W]`, a row of each sequence, which begins with the heads of `shape`.
        pages: The layer's pages.
        slots: Places of the tokens in the pages; see `prepare_heads` and `paged_decode`.
        turns: Rotation of queries and keys; None for none.
        scoring: Scale, softcap and sinks.
        shape: Heads of the rows; without key heads, the pages hold keys and values already.
        norms: Norms of queries, keys and values.
        longest: Upper bound of the context lengths in tokens, preferably a power of two.
        window: Keys that a query sees, its own included; None for all before it.

    Returns:
        `[N, Hq, Dv]`, and the new write fence; the old fence if nothing was stored.
    """
    kind = _kind_of(projected, pages, turns, shape, norms, scoring)
    check = functools.partial(_check, kind, projected.shape[1])
    if _fits(projected, kind, pages, norms) and dispatch.takes_kernel(
        "decode_projected", (kind, projected.shape[1]), check
    ):
        out, fence = paged_launch.attend_made(
            kind, projected, pages, slots, turns, norms, longest, scoring, window
        )
        return out, fence if shape.kv_heads else pages.fence
    return _in_two(projected, pages, slots, turns, shape, norms, longest, scoring, window)


def _in_two(
    projected: mx.array,
    pages: Pages,
    slots: Slots,
    turns: Turns | None,
    shape: HeadShape,
    norms: Norms,
    longest: int,
    scoring: Scoring,
    window: int | None,
) -> tuple[mx.array, mx.array]:
    stored = (pages, slots) if shape.kv_heads else (None, None)
    q, fence = prepare_heads(projected, *stored, turns, shape=shape, norms=norms)
    pages = pages if fence is None else attrs.evolve(pages, fence=fence)
    where = (slots.tables, slots.rows, slots.positions)
    out = paged_decode(q, pages, *where, scoring, longest=longest, window=window)
    return out, pages.fence


def _kind_of(
    projected: mx.array,
    pages: Pages,
    turns: Turns | None,
    shape: HeadShape,
    norms: Norms,
    scoring: Scoring,
) -> Shape:
    kind = Shape(
        dtype=projected.dtype,
        page=pages.layout,
        group=shape.num_heads // pages.layout.heads,
        capped=scoring.softcap is not None,
        sunk=scoring.sinks is not None,
        making=Making.of(shape, turns, norms),
    )
    return paged_launch.widened(kind, projected.shape[0])


def _fits(projected: mx.array, kind: Shape, pages: Pages, norms: Norms) -> bool:
    """Return whether one launch supports the arguments."""
    arrays = (pages.keys, pages.values, *weights_of(norms))
    return (
        launch.backend() is not None
        and paged_plan.makes_heads(kind, projected.shape[1])
        and all(array.dtype == projected.dtype for array in arrays)
    )


def _check(kind: Shape, width: int, seed: int = 1) -> None:
    """Compare with both references: in one piece, in splits, and with a window."""
    page, making = kind.page, kind.making
    assert making is not None
    stored = page.heads if making.stores else 0
    shape = HeadShape(
        page.heads * kind.group, stored, page.dims, page.v_dims, making.query_stride
    )
    blocks = 2 - -paged_plan.SHORTEST_SPLIT // page.size
    end = blocks * page.size
    tables = mx.arange(1, 3 * blocks + 1, dtype=mx.int32).reshape(3, blocks)
    # null pages: at the start of a row, before its end, and at the place of a new token
    tables[0, 0], tables[0, -2], tables[2, 1] = 0, 0, 0
    positions = mx.array([end - 1, end // 2, page.size + 1], mx.int32)
    slots = Slots(tables, mx.array([0, 1, 2], mx.int32), positions)
    projected = dispatch.noise(seed, kind.dtype, 3, width)
    turns, norms = _turns(making, seed + 1), _norms(making, shape, kind.dtype, seed + 2)
    scoring = Scoring(
        page.dims**-0.5,
        2.0 if kind.capped else None,
        dispatch.noise(seed + 5, mx.float32, shape.num_heads) if kind.sunk else None,
    )
    window = 2 * page.size + 3
    for longest, seen in ((1, None), (3 * paged_plan.UNSPLIT // 2, None), (end, window)):
        mine, other = (_pages(kind, 3 * blocks + 1, seed + 6) for _ in range(2))
        out, fence = paged_launch.attend_made(
            kind, projected, mine, slots, turns, norms, longest, scoring, seen
        )
        mx.eval(out, fence)
        null_page = other.keys[0], other.values[0]
        places = (other, slots) if making.stores else (None, None)
        q, _ = prepare_heads_reference(projected, *places, turns, shape, norms)
        where = (tables, slots.rows, positions)
        want = paged_decode_reference(q, other, *where, scoring, longest=end, window=seen)
        other.keys[0], other.values[0] = null_page  # the reference writes the null page, too
        dispatch.compare(
            [out, fence, mine.keys, mine.values],
            [want, other.fence + 1, other.keys, other.values],
        )


def _pages(kind: Shape, num_pages: int, seed: int) -> Pages:
    pages = random_pages(kind.dtype, num_pages, kind.page, seed)
    fence = mx.array([5], mx.int32)
    mx.eval(pages.keys, pages.values, fence)
    return attrs.evolve(pages, fence=fence)


def _turns(making: Making, seed: int) -> Turns | None:
    if not making.turned_dims:
        return None
    angles = dispatch.noise(seed, mx.float32, 3, making.turned_dims // 2)
    return Turns.by(angles, interleaved=making.interleaved)


def _norms(making: Making, shape: HeadShape, dtype: mx.Dtype, seed: int) -> Norms:
    dims = (shape.head_dim, shape.head_dim, shape.value_dim)
    q, k, v = (
        None
        if code == 0
        else ProbeNorm(
            dispatch.noise(seed + i, dtype, n) if code > 1 else None,
            0.1 * (i + 1),
            zero_centred=code == 3,
        )
        for i, (code, n) in enumerate(zip(making.norms, dims, strict=True))
    )
    return q, k, v


def _probe(
    dtype: mx.Dtype,
    form: Literal["halves", "pairs", "plain", "queries"],
    group: int,
    dims: tuple[int, int],
    seed: int = 1,
) -> None:
    """Compare one form of heads that families have; `pairs` has softcap and sinks, too."""
    page, extras = Layout(2, 8, *dims), form == "pairs"
    making = {
        "halves": Making(dims[0], dims[0], norms=(2, 2, 0)),
        "pairs": Making(2 * dims[0], dims[0] // 2, interleaved=True, norms=(3, 1, 2)),
        "plain": Making(dims[0]),
        "queries": Making(dims[0], dims[0], norms=(2, 0, 0), stores=False),
    }[form]
    kind = Shape(dtype, page, group, capped=extras, sunk=extras, making=making)
    ends = HeadShape(2 * group, 2 * making.stores, *dims, making.query_stride).ends
    # a row has more columns than the heads, as if a gate were projected, too
    _check(kind if form == "plain" else kind.widened(3), ends[2] + 16, seed)


dispatch.register(
    "decode_projected",
    _probe,
    [
        ("halves", 2, (64, 64)),
        ("pairs", 3, (32, 64)),
        ("plain", 9, (64, 32)),
        ("queries", 2, (64, 64)),
    ],
)
