"""Norms and rotation of heads, and the write of keys and values to pages."""

from __future__ import annotations

import functools
from typing import Literal

import mlx.core as mx

from ..elementwise.norms import Norm, ProbeNorm
from ..runtime import dispatch
from . import heads_launch
from .head_shape import HeadShape, Norms, Slots, Turns
from .mlx_attention import scatter_rows, token_rows
from .pages import Pages


def prepare_heads(
    projected: mx.array,
    pages: Pages | None,
    slots: Slots | None,
    turns: Turns | None,
    *,
    shape: HeadShape,
    norms: Norms = (None, None, None),
) -> tuple[mx.array, mx.array | None]:
    """Norm and rotate the heads of a step, and write keys and values to their pages in place.

    A later read of the pages takes the returned write fence as input, so that it runs after the
    write. Values are not rotated. A block id of 0 or less is the null block; its tokens are not
    written.

    Args:
        projected: `[T, W]`, at least one row; a row begins with the heads of `shape`.
        pages: The layer's pages; None if only queries are projected.
        slots: Places of the tokens in the pages; None if `pages` is None.
        turns: Rotation of queries and keys; None for none.
        shape: Heads of the rows.
        norms: Norms of queries, keys and values.

    Returns:
        Queries `[T, Hq, D]`, and the new write fence, None without pages.
    """
    plan = heads_launch.plan_of(projected, pages, turns, shape, norms)
    check = functools.partial(_check, projected, pages, turns, shape, norms)
    taken = dispatch.takes_kernel(
        "prepare_heads", plan.variant, check, unsupported=plan.unsupported
    )
    if taken:
        return heads_launch.launched(plan, projected, pages, slots, turns, norms)
    return prepare_heads_reference(projected, pages, slots, turns, shape, norms)


def prepare_heads_reference(
    projected: mx.array,
    pages: Pages | None,
    slots: Slots | None,
    turns: Turns | None,
    shape: HeadShape,
    norms: Norms,
) -> tuple[mx.array, mx.array | None]:
    """Compute `prepare_heads` in MLX operations; the null block is written, too."""
    ends = shape.ends
    q = projected[:, : ends[0]].reshape(-1, shape.num_heads, shape.query_stride)
    q = _turned(_normed(q[..., : shape.head_dim], norms[0]), turns)
    if pages is None or slots is None:
        return q, None
    k = projected[:, ends[0] : ends[1]].reshape(-1, shape.kv_heads, shape.head_dim)
    v = projected[:, ends[1] : ends[2]].reshape(-1, shape.kv_heads, shape.value_dim)
    k, v = _turned(_normed(k, norms[1]), turns), _normed(v, norms[2])
    page_size = pages.keys.shape[2]
    blocks = mx.maximum(slots.tables[slots.rows, slots.positions // page_size], 0)
    places = token_rows(blocks, slots.positions % page_size, shape.kv_heads, page_size)
    scatter_rows(pages.keys, places, k.astype(pages.keys.dtype))
    scatter_rows(pages.values, places, v.astype(pages.values.dtype))
    return q, pages.fence


def _normed(x: mx.array, norm: Norm | None) -> mx.array:
    return x if norm is None else norm(x)


def _turned(x: mx.array, turns: Turns | None) -> mx.array:
    """Return heads `[T, H, D]` rotated; arithmetic is float32."""
    if turns is None:
        return x
    half = turns.dims // 2
    cos, sin = turns.cos[:, None], turns.sin[:, None]
    head = x[..., : 2 * half].astype(mx.float32)
    if turns.interleaved:
        a, b = head[..., ::2], head[..., 1::2]
    else:
        a, b = head[..., :half], head[..., half:]
    pair = [a * cos - b * sin, b * cos + a * sin]
    if turns.interleaved:
        out = mx.stack(pair, axis=-1).reshape(head.shape)
    else:
        out = mx.concatenate(pair, axis=-1)
    return mx.concatenate([out.astype(x.dtype), x[..., 2 * half :]], axis=-1)


def prepare_heads_kernel(
    projected: mx.array,
    pages: Pages | None,
    slots: Slots | None,
    turns: Turns | None,
    shape: HeadShape,
    norms: Norms,
) -> tuple[mx.array, mx.array | None]:
    """Compute `prepare_heads` in one launch."""
    plan = heads_launch.plan_of(projected, pages, turns, shape, norms)
    return heads_launch.launched(plan, projected, pages, slots, turns, norms)


def _check(
    projected: mx.array,
    pages: Pages | None,
    turns: Turns | None,
    shape: HeadShape,
    norms: Norms,
    seed: int = 1,
) -> None:
    """Compare kernel and reference on three tokens of two sequences."""
    rows = dispatch.noise(seed, projected.dtype, 3, projected.shape[-1])
    if turns is not None:
        angles = dispatch.noise(seed + 1, mx.float32, 3, turns.dims // 2)
        turns = Turns.by(angles, interleaved=turns.interleaved)
    if pages is None:
        got, _ = prepare_heads_kernel(rows, None, None, turns, shape, norms)
        want, _ = prepare_heads_reference(rows, None, None, turns, shape, norms)
        dispatch.compare([got], [want])
        return
    page_size = pages.keys.shape[2]
    tables = mx.array([[1, 3, 0], [2, 4, 0]], mx.int32)
    positions = mx.array([page_size, page_size - 1, 2 * page_size], mx.int32)
    slots = Slots(tables, mx.array([0, 1, 1], mx.int32), positions)
    mine, other, before = (_check_pages(pages, projected.dtype, seed) for _ in range(3))
    got, fence = prepare_heads_kernel(rows, mine, slots, turns, shape, norms)
    assert fence is not None
    mx.eval(got, fence)
    want, _ = prepare_heads_reference(rows, other, slots, turns, shape, norms)
    # the last token belongs to the null block, which only the reference writes
    pairs = ((mine.keys, other.keys, before.keys), (mine.values, other.values, before.values))
    dispatch.compare(
        [got, fence, *(pool for pool, _, _ in pairs)],
        [want, before.fence + 1, *(mx.concatenate([b[:1], o[1:]]) for _, o, b in pairs)],
    )


def _check_pages(pages: Pages, dtype: mx.Dtype, seed: int) -> Pages:
    keys = dispatch.noise(seed + 2, dtype, 5, *pages.keys.shape[1:])
    values = dispatch.noise(seed + 3, dtype, 5, *pages.values.shape[1:])
    fence = mx.array([5], mx.int32)
    mx.eval(keys, values, fence)
    return Pages(keys, values, fence)


def _probe(
    dtype: mx.Dtype, form: Literal["paged", "pairs", "queries"], dims: int, seed: int = 1
) -> None:
    """Compare one form of heads that families have, with `dims` elements."""
    shape = HeadShape(3, 0 if form == "queries" else 2, dims, query_stride=dims + 16)
    turned_dims = dims // 2 if form == "pairs" else dims
    turns = Turns(mx.zeros((3, turned_dims)), form == "pairs")
    weight = dispatch.noise(seed + 5, dtype, dims)
    weighted = ProbeNorm(weight, 1e-5, zero_centred=False)
    centred = ProbeNorm(weight, 1e-6, zero_centred=True)
    plain = ProbeNorm(None, 1e-6, zero_centred=False)
    norms = (None, centred, plain) if form == "pairs" else (weighted, weighted, None)
    pools = mx.zeros((5, 2, 4, dims), dtype)
    pages = None if form == "queries" else Pages(pools, pools, mx.zeros((1,), mx.int32))
    # a row has more columns than the heads, as if a gate were projected, too
    projected = mx.zeros((3, shape.ends[2] + 8), dtype)
    _check(projected, pages, turns, shape, norms, seed)


dispatch.register("prepare_heads", _probe, [("paged", 64), ("pairs", 32), ("queries", 128)])
