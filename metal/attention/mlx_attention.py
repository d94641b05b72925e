"""Attention over pages and over contiguous keys, in MLX operations.

Pools are `[B, Hk, S, D]`: `B` pages of `S` tokens. A CPU has no fused attention kernel. There,
one matrix product per key head computes the scores. Its rows are the `G = Hq/Hk` queries of the
group, so that keys are read once instead of `G` times.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx

from ..runtime import dispatch
from ..runtime.fusion import fused
from .scoring import Scoring

QUERY_TILE = 256
"""Queries of a tile on a CPU. A tile bounds the score matrix and skips the keys after its last
query."""
MIN_QUERY_TILE = 128
"""Smallest tile for windows shorter than `QUERY_TILE`, where masks would cover most scores."""


def page_rows(tables: mx.array, heads: int) -> mx.array:
    """Return the pool rows of the pages in `tables [N, M]`, `[N, Hk, M]`.

    A pool row is the part of a page that belongs to one key head; a pool has `B * Hk` rows.
    """
    return tables[:, None, :] * heads + mx.arange(heads)[:, None]


def gather_rows(pool: mx.array, rows: mx.array) -> mx.array:
    """Return the keys or values of pages, contiguous, by one copy without a transpose.

    Args:
        pool: `[B, Hk, S, D]`.
        rows: Pool rows from `page_rows`.

    Returns:
        `[N, Hk, M * S, D]`.
    """
    *_, page_size, dims = pool.shape
    num_rows, heads, num_pages = rows.shape
    pages = mx.take(pool.reshape(-1, page_size * dims), rows, axis=0)
    return pages.reshape(num_rows, heads, num_pages * page_size, dims)


def token_rows(pages: mx.array, offsets: mx.array, heads: int, page_size: int) -> mx.array:
    """Return the slots of tokens among the `B * Hk * S` slots of a pool, `[T * Hk]`.

    Args:
        pages: Page of each token, `[T]` int32.
        offsets: Position of each token in its page, `[T]` int32.
        heads: Key heads.
        page_size: `S`.
    """
    first = pages * (heads * page_size) + offsets
    return (first[:, None] + mx.arange(0, heads * page_size, page_size)).reshape(-1)


def scatter_rows(pool: mx.array, rows: mx.array, x: mx.array) -> None:
    """Write `x [T, Hk, D]` to the slots from `token_rows`, in place.

    MLX reuses the buffer of the pool only if no other reference to the array or a view exists.
    """
    flat = pool.reshape(-1, pool.shape[-1])
    flat[rows] = x.reshape(-1, x.shape[-1]).astype(pool.dtype)
    pool[:] = flat.reshape(pool.shape)


def _cap(scores: mx.array, softcap: float | None) -> mx.array:
    return scores if softcap is None else softcap * mx.tanh(scores / softcap)


def _attend(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: mx.array,
    scoring: Scoring,
) -> mx.array:
    """Return `[N, Hk, G, L, Dv]` for `q [N, Hk, G, L, D]`, keys `[N, Hk, K, D]`.

    `mask` is added to the scores `[N, Hk, G, L, K]`; the softmax is in float32.
    """
    num_rows, heads, group, length, dims = q.shape
    rows = (q * scoring.scale).reshape(num_rows, heads, group * length, dims)
    scores = (rows @ k.swapaxes(-1, -2)).reshape(num_rows, heads, group, length, -1)
    scores = _cap(scores.astype(mx.float32), scoring.softcap) + mask
    sinks = None if scoring.sinks is None else scoring.sinks.reshape(heads, group, 1, 1)
    weights = _weights(scores, sinks).astype(v.dtype)
    out = weights.reshape(num_rows, heads, group * length, -1) @ v
    return out.reshape(num_rows, heads, group, length, -1)


def _weights(scores: mx.array, sinks: mx.array | None) -> mx.array:
    """Return the softmax of `scores [..., K]`, to which `sinks [..., 1]` contribute."""
    if sinks is None:
        return mx.softmax(scores, axis=-1)
    column = mx.broadcast_to(sinks, (*scores.shape[:-1], 1))
    return mx.softmax(mx.concatenate([scores, column], axis=-1), axis=-1)[..., :-1]


@functools.cache
def _shape(scale: float, softcap: float | None) -> Callable[[mx.array, mx.array], mx.array]:
    """Return a function that computes float32 scores from products and a mask."""

    def shape(products: mx.array, mask: mx.array) -> mx.array:
        return _cap(products.astype(mx.float32) * scale, softcap) + mask

    return fused(shape)


def _fused(device: mx.Device, scoring: Scoring) -> bool:
    return device.type == mx.DeviceType.gpu and scoring.softcap is None


def _fused_attention(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | str, scoring: Scoring
) -> mx.array:
    """Return `[N, Hq, L, Dv]` by MLX's fused attention, for `q [N, Hq, L, D]`."""
    sinks = None if scoring.sinks is None else scoring.sinks.astype(q.dtype)
    return mx.fast.scaled_dot_product_attention(
        q, k, v, scale=scoring.scale, mask=mask, sinks=sinks
    )


def decode_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: mx.array,
    scoring: Scoring,
) -> mx.array:
    """Attend one query of each row to the keys of the row.

    Args:
        q: `[N, Hq, D]`.
        k: `[N, Hk, K, D]`.
        v: `[N, Hk, K, Dv]`.
        mask: `[N, 1, 1, 1, K]` float32, 0 where a key is visible and -inf elsewhere.
        scoring: Scale, softcap and sinks.

    Returns:
        `[N, Hq, Dv]`.
    """
    num_rows, num_heads, dims = q.shape
    heads = k.shape[1]
    if _fused(mx.default_device(), scoring):
        dispatch.record("decode_attention", "sdpa")
        out = _fused_attention(q[:, :, None], k, v, mask[:, 0].astype(q.dtype), scoring)
        return out.reshape(num_rows, num_heads, -1)
    dispatch.record("decode_attention", "ops")
    group = num_heads // heads
    products = q.reshape(num_rows, heads, group, dims) @ k.swapaxes(-1, -2)
    shaped = _shape(scoring.scale, scoring.softcap)(products, mask.squeeze(1))
    sinks = None if scoring.sinks is None else scoring.sinks.reshape(heads, group, 1)
    weights = _weights(shaped, sinks).astype(v.dtype)
    return (weights @ v).reshape(num_rows, num_heads, -1)


def prefill_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    scoring: Scoring,
    *,
    window: int | None = None,
) -> mx.array:
    """Attend consecutive queries causally; the last query is at the last key.

    Args:
        q: `[L, Hq, D]`.
        k: `[Hk, K, D]`, `K >= L`; the first `K - L` keys are a prefix.
        v: `[Hk, K, Dv]`.
        scoring: Scale, softcap and sinks.
        window: Keys that a query sees, its own included; None for all before it.

    Returns:
        `[L, Hq, Dv]`.
    """
    length, num_heads, dims = q.shape
    heads, num_keys, _ = k.shape
    if _fused(mx.default_device(), scoring):
        dispatch.record("prefill_attention", "sdpa")
        queries = q.swapaxes(0, 1)[None]
        windowed = window is not None and window < num_keys
        mask = _visible(num_keys - length, num_keys, 0, window) if windowed else "causal"
        out = _fused_attention(queries, k[None], v[None], mask, scoring)
        return out.squeeze(0).swapaxes(0, 1)
    dispatch.record("prefill_attention", "ops")
    grouped = q.swapaxes(0, 1).reshape(1, heads, num_heads // heads, length, dims)
    size = QUERY_TILE if window is None else min(QUERY_TILE, max(MIN_QUERY_TILE, window))
    tiles = [
        _causal_tile(grouped, k, v, start, size, num_keys - length, scoring, window)
        for start in range(0, length, size)
    ]
    out = tiles[0] if len(tiles) == 1 else mx.concatenate(tiles, axis=3)
    return out.reshape(num_heads, length, -1).swapaxes(0, 1)


def _causal_tile(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    start: int,
    size: int,
    prefix: int,
    scoring: Scoring,
    window: int | None,
) -> mx.array:
    """Attend queries `[start, start + size)` of `q [1, Hk, G, L, D]`."""
    tile = q[:, :, :, start : start + size]
    first, last = prefix + start, prefix + start + tile.shape[3]
    oldest = 0 if window is None else max(0, first - window + 1)
    mask = mx.where(_visible(first, last, oldest, window), 0.0, -mx.inf)
    keys, values = k[None, :, oldest:last], v[None, :, oldest:last]
    return _attend(tile, keys, values, mask, scoring)


def _visible(first: int, last: int, oldest: int, window: int | None) -> mx.array:
    """Return the mask `[L, K]` of visible keys `[oldest, last)`, queries `[first, last)`."""
    queries, keys = mx.arange(first, last)[:, None], mx.arange(oldest, last)[None]
    causal = keys <= queries
    return causal if window is None else causal & (keys > queries - window)
