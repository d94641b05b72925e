"""Attention over pages in MLX operations, the reference of the kernels."""

from __future__ import annotations

import mlx.core as mx

from .mlx_attention import gather_rows, page_rows
from .pages import Pages
from .scoring import Scoring


def paged_decode_reference(
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
    """Compute `paged_decode` in MLX operations."""
    found = _keys_and_values(pages, tables, rows, positions, longest)
    return _attend(q[:, None], *found, positions[:, None], scoring, window)[:, 0]


def paged_prefill_reference(
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
    """Compute `paged_prefill` in MLX operations."""
    length = q.shape[0]
    last = position + (length - 1)
    found = _keys_and_values(pages, tables, row, last, start + length)
    positions = position + mx.arange(length)
    return _attend(q[None], *found, positions[None], scoring, window)[0]


def _keys_and_values(
    pages: Pages, tables: mx.array, rows: mx.array, last: mx.array, num_keys: int
) -> tuple[mx.array, mx.array, mx.array]:
    """Return keys and values `[N, Hk, K, D]`, and the mask of existing tokens, `[N, K]`.

    Tokens after the `last` position or in the null page do not exist; their elements are zeros.
    """
    entries = tables[rows, : -(-num_keys // pages.size)]
    begun = mx.arange(entries.shape[1]) * pages.size <= last[:, None]
    entries = mx.where(begun, mx.maximum(entries, 0), 0)  # entries after the end are undefined
    at = page_rows(entries, pages.keys.shape[1])
    exist = mx.repeat(entries > 0, pages.size, axis=1)
    exist = exist & (mx.arange(exist.shape[1]) <= last[:, None])
    keys, values = (
        mx.where(exist[:, None, :, None], gather_rows(pool, at), 0).astype(mx.float32)
        for pool in (pages.keys, pages.values)
    )
    return keys, values, exist


def _attend(
    q: mx.array,
    keys: mx.array,
    values: mx.array,
    exist: mx.array,
    positions: mx.array,
    scoring: Scoring,
    window: int | None,
) -> mx.array:
    """Return `[N, L, Hq, Dv]` for `q [N, L, Hq, D]` at `positions [N, L]`, in float32."""
    num_rows, length, num_heads, dims = q.shape
    heads = keys.shape[1]
    grouped = q.astype(mx.float32).reshape(num_rows, length, heads, -1, dims)
    products = grouped.transpose(0, 2, 3, 1, 4) @ keys[:, :, None].swapaxes(-1, -2)
    scores = _cap(products * scoring.scale, scoring.softcap)
    at = mx.arange(exist.shape[1])
    visible = exist[:, None] & (at <= positions[..., None])
    if window is not None:
        visible = visible & (at > positions[..., None] - window)
    scores = mx.where(visible[:, None, None], scores, -mx.inf)
    out = _softmax(scores, scoring.sinks) @ values[:, :, None]
    out = out.transpose(0, 3, 1, 2, 4).reshape(num_rows, length, num_heads, -1)
    return out.astype(q.dtype)


def _cap(scores: mx.array, softcap: float | None) -> mx.array:
    return scores if softcap is None else softcap * mx.tanh(scores / softcap)


def _softmax(scores: mx.array, sinks: mx.array | None) -> mx.array:
    """Return weights `[N, Hk, G, L, K]`; zeros where nothing is visible."""
    shape = scores.shape
    sink = mx.array(-mx.inf) if sinks is None else sinks
    sink = mx.broadcast_to(sink.reshape(-1, 1, 1), (shape[1] * shape[2], 1, 1))
    sink = sink.reshape(shape[1], shape[2], 1, 1)
    most = mx.maximum(mx.maximum(scores.max(axis=-1, keepdims=True), sink), -1e30)
    weights = mx.exp(scores - most)
    total = weights.sum(axis=-1, keepdims=True) + mx.exp(sink - most)
    return mx.where(total > 0, weights / total, 0.0)
