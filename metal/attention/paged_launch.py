"""The launches of attention over pages, and their self-check."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from ..runtime import dispatch, launch
from ..runtime.launch import Kernel, Launch, Output, floats, ints
from . import paged_plan
from .head_shape import WEIGHTS, Norms, Slots, Turns, epsilons_of, weights_of
from .paged_plan import Shape
from .paged_reference import paged_decode_reference, paged_prefill_reference
from .pages import Pages, random_pages
from .scoring import Scoring

_ATTENTION = Kernel(
    "paged_attention",
    (
        "q",
        "keys",
        "values",
        "tables",
        "rows",
        "positions",
        "sinks",
        "turns",
        "q_weight",
        "k_weight",
        "v_weight",
        "fp",
        "prev",
    ),
    ("out", "stats", "next"),
)
_COMBINE = Kernel("paged_combine", ("parts", "stats", "sinks", "ip"), ("out",))
_LOG2E = math.log2(math.e)


def shape_of(q: mx.array, pages: Pages, scoring: Scoring, length: int | None = None) -> Shape:
    """Return the shape of the kernel; `length` is that of a slice, None in decoding."""
    shape = Shape(
        dtype=q.dtype,
        page=pages.layout,
        group=q.shape[1] // pages.keys.shape[1],
        capped=scoring.softcap is not None,
        sunk=scoring.sinks is not None,
    )
    return widened(shape if length is None else shape.tiled(length), q.shape[0])


def widened(shape: Shape, num_queries: int) -> Shape:
    """Return the shape for `num_queries` queries, with larger threadgroups if there are few.

    Metal keeps the usual threadgroups: a pipeline with many registers may allow fewer threads.
    """
    backend = launch.backend()
    if backend is None or backend.name == "metal":
        return shape
    return shape.widened(-(-num_queries // (shape.queries or 1)))


def attend(
    shape: Shape,
    q: mx.array,
    pages: Pages,
    slots: Slots,
    longest: int,
    scoring: Scoring,
    window: int | None,
) -> mx.array:
    """Launch the attention, in two launches if contexts are split.

    Args:
        shape: Shape from `shape_of`.
        q: `[N, Hq, D]`; the queries of a slice belong to one sequence, at consecutive
            positions.
        pages: The layer's pools.
        slots: Places of the queries in the pages; of a slice, of its first query only.
        longest: Upper bound of the context lengths in tokens.
        scoring: Scale, softcap and sinks.
        window: Keys that a query sees, its own included; None for all before it.

    Returns:
        `[N, Hq, Dv]`.
    """
    return _launched(shape, q, pages, slots, longest, scoring, window)[0]


def attend_made(
    shape: Shape,
    projected: mx.array,
    pages: Pages,
    slots: Slots,
    turns: Turns | None,
    norms: Norms,
    longest: int,
    scoring: Scoring,
    window: int | None,
) -> tuple[mx.array, mx.array]:
    """Launch the attention on projections: make heads, store keys and values, attend.

    Args:
        shape: Shape with a `making`.
        projected: `[N, W]`, one row of each sequence.
        pages: The layer's pools.
        slots: Places of the tokens in the pages.
        turns: Rotation of queries and keys; None for none.
        norms: Norms of queries, keys and values.
        longest: Upper bound of the context lengths in tokens.
        scoring: Scale, softcap and sinks.
        window: Keys that a query sees, its own included; None for all before it.

    Returns:
        `[N, Hq, Dv]`, and the new write fence.
    """
    further = [] if turns is None else [turns.factors]
    further += weights_of(norms)
    numbers = (projected.shape[1], *epsilons_of(norms))
    return _launched(shape, projected, pages, slots, longest, scoring, window, further, numbers)


def _launched(
    shape: Shape,
    q: mx.array,
    pages: Pages,
    slots: Slots,
    longest: int,
    scoring: Scoring,
    window: int | None,
    further: Sequence[mx.array] = (),
    numbers: Sequence[float] = (),
) -> tuple[mx.array, mx.array]:
    queries = shape.queries or 1
    tiles = -(-q.shape[0] // queries)
    visible = longest if window is None else min(longest, window + queries)
    splits = paged_plan.num_splits(shape, tiles, visible)
    sink = [] if scoring.sinks is None else [scoring.sinks]
    factors = _factors(scoring.scale, scoring.softcap)
    width, least = slots.tables.shape[1], paged_plan.least_rounds(shape)
    fp = floats(*factors, width, window or 0, q.shape[0], least, *numbers)
    threads = 32 * shape.simdgroups
    started = Launch(
        template=paged_plan.template_for(shape, splits == 1),
        grid=(threads * splits, shape.threadgroups, tiles),
        threadgroup=(threads, 1, 1),
        outputs=_outputs(shape, q.shape[0], splits),
    )
    where = (slots.tables, slots.rows, slots.positions)
    inputs = (q, pages.keys, pages.values, *where, *sink, *further, fp, pages.fence)
    out, *stats, fence = _attention(shape, splits)(*inputs, launch=started)
    return _combine(shape, out, stats[0], sink, splits) if stats else out, fence


def _attention(shape: Shape, splits: int) -> Kernel:
    """Return the variant of the kernel with the inputs and outputs of a shape."""
    making = shape.making
    absent = ["stats"] if splits == 1 else []
    absent += [] if shape.sunk else ["sinks"]
    absent += [] if making is not None and making.turned_dims else ["turns"]
    absent += WEIGHTS if making is None else making.unweighted
    return _ATTENTION.without(*absent)


def _outputs(shape: Shape, num_queries: int, splits: int) -> list[Output]:
    lead, v_dims = (num_queries, shape.page.heads * shape.group), shape.page.v_dims
    fence = ((1,), mx.int32)
    if splits == 1:
        return [((*lead, v_dims), shape.dtype), fence]
    return [((*lead, splits, v_dims), mx.float32), ((*lead, splits, 2), mx.float32), fence]


def _combine(
    shape: Shape, parts: mx.array, stats: mx.array, sink: Sequence[mx.array], splits: int
) -> mx.array:
    num_queries, num_heads, *_, v_dims = parts.shape
    threads = 32 * -(-v_dims // 128)
    started = Launch(
        template={"T": shape.dtype, "DV": v_dims, "SINKS": shape.sunk},
        grid=(threads, num_heads, num_queries),
        threadgroup=(threads, 1, 1),
        outputs=(((num_queries, num_heads, v_dims), shape.dtype),),
    )
    kernel = _COMBINE if shape.sunk else _COMBINE.without("sinks")
    return kernel(parts, stats, *sink, ints(splits), launch=started)[0]


def _factors(scale: float, softcap: float | None) -> tuple[float, float]:
    """Return factors on queries and on capped scores that make `exp2(score)` the weight."""
    return (scale * _LOG2E, 0.0) if softcap is None else (scale / softcap, softcap * _LOG2E)


def check(shape: Shape, seed: int = 1) -> None:
    """Compare with the reference: one piece, splits, a window, rising scores."""
    page, num_heads = shape.page, shape.page.heads * shape.group
    entries = list(range(1, 2 - -paged_plan.SHORTEST_SPLIT // page.size))
    pages = random_pages(shape.dtype, 1 + len(entries), page, seed)
    end = len(entries) * page.size
    tables = mx.array([[0, *entries[1:]], entries[::-1]], mx.int32)
    # null pages within the window, too: the last but one page of each row
    tables[0, max(end // 2 // page.size - 1, 0)] = 0
    tables[1, -2] = 0
    scoring = Scoring(
        page.dims**-0.5,
        2.0 if shape.capped else None,
        dispatch.noise(seed + 3, mx.float32, num_heads) if shape.sunk else None,
    )
    # a slice leaves one query of its tile free, unless the tile has only one
    length = 3 if shape.queries is None else max(1, shape.queries - 1)
    q = mx.random.normal((length, num_heads, page.dims), key=mx.random.key(seed + 2))
    q = q.astype(shape.dtype)
    window = 2 * page.size + 3
    for longest, seen, rises in (
        (1, None, False),
        (3 * paged_plan.UNSPLIT // 2, None, False),
        (end, window, False),
        (1, None, True),
    ):
        if rises:
            _let_scores_rise(q, pages)
        if shape.queries is None:
            rows = mx.array([1, 0, 1], mx.int32)
            at = mx.array([end - 1, end // 2, 3], mx.int32)
            want = paged_decode_reference(
                q, pages, tables, rows, at, scoring, longest=end, window=seen
            )
        else:
            start = end - length
            rows, at = mx.array([1], mx.int32), mx.array([start], mx.int32)
            want = paged_prefill_reference(
                q, pages, tables, rows, at, scoring, start=start, window=seen
            )
        slots = Slots(tables, rows, at)
        got = attend(shape, q, pages, slots, longest, scoring, seen)
        dispatch.compare([got], [want])


def _let_scores_rise(q: mx.array, pages: Pages) -> None:
    """Let each key's score exceed the score before by about one, for pages in falling order.

    The elements are whole numbers, because float32 products may be TF32 products.
    """
    num_pages, _, size, dims = pages.keys.shape
    nth = mx.arange(num_pages - 1, -1, -1)[:, None] * size + mx.arange(size)
    pages.keys[..., 0] = nth[:, None].astype(pages.keys.dtype)
    q[..., 0] = round(dims**0.5)
