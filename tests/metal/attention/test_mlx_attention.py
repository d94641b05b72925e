from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.metal.attention import mlx_attention
from neve.metal.attention.mlx_attention import (
    decode_attention,
    gather_rows,
    page_rows,
    prefill_attention,
    scatter_rows,
    token_rows,
)
from neve.metal.attention.scoring import Scoring
from neve.metal.runtime import dispatch

pytestmark = pytest.mark.mlx

SCALE = 0.3
SCORING = Scoring(SCALE)
TOLERANCE = {mx.float32: 3e-6, mx.bfloat16: 3e-2, mx.float16: 4e-3}


def normal(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32), np.float64)


def naive_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    softcap: float | None,
    window: int | None = None,
    sinks: list[float] | None = None,
) -> np.ndarray:
    """Attend queries `[L, Hq, D]` to keys `[Hk, K, D]`, the last query at the last key."""
    length, num_heads, _ = q.shape
    heads, num_keys, _ = k.shape
    out = np.empty((length, num_heads, v.shape[-1]))
    for i in range(length):
        end = num_keys - length + i + 1
        visible = slice(0 if window is None else max(0, end - window), end)
        for h in range(num_heads):
            group = h * heads // num_heads
            scores = k[group, visible] @ q[i, h] * SCALE
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            sink = [] if sinks is None else [sinks[h]]
            most = max([*scores, *sink])
            weights = np.exp(scores - most)
            total = weights.sum() + np.exp(np.array(sink) - most).sum()
            out[i, h] = weights @ v[group, visible] / total
    return out


def ragged_mask(lengths: list[int], num_keys: int) -> mx.array:
    """Return `[N, 1, 1, 1, K]`: row `n` sees its first `lengths[n]` keys."""
    visible = mx.arange(num_keys)[None] < mx.array(lengths)[:, None]
    return mx.where(visible, 0.0, -mx.inf)[:, None, None, None]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("num_heads", "heads", "v_dim"), [(4, 4, 8), (6, 2, 8), (4, 1, 12)])
def test_decode_is_naive_attention(
    num_heads: int, heads: int, v_dim: int, softcap: float | None, dtype: mx.Dtype
) -> None:
    """SC-1: each row attends to its own keys, however many the longest row has."""
    lengths = [1, 5, 12]
    q = normal(1, 3, num_heads, 8, dtype=dtype)
    k = normal(2, 3, heads, 12, 8, dtype=dtype)
    v = normal(3, 3, heads, 12, v_dim, dtype=dtype)

    actual = decode_attention(
        q, k, v, ragged_mask(lengths, 12), scoring=Scoring(SCALE, softcap)
    )

    assert (actual.shape, actual.dtype) == ((3, num_heads, v_dim), dtype)
    for n, length in enumerate(lengths):
        keys, values = float64(k[n])[:, :length], float64(v[n])[:, :length]
        expected = naive_attention(float64(q[n])[None], keys, values, softcap)[0]
        np.testing.assert_allclose(float64(actual[n]), expected, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("num_heads", "heads", "v_dim"), [(4, 4, 8), (6, 2, 12), (4, 1, 4)])
@pytest.mark.parametrize(("length", "prefix"), [(1, 0), (1, 6), (13, 0), (13, 6), (8, 8)])
def test_prefill_is_naive_attention(
    length: int,
    prefix: int,
    num_heads: int,
    heads: int,
    v_dim: int,
    softcap: float | None,
    dtype: mx.Dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SC-1: a slice is causal behind its prefix, also across the edges of query tiles."""
    monkeypatch.setattr(mlx_attention, "QUERY_TILE", 4)
    q = normal(4, length, num_heads, 8, dtype=dtype)
    k = normal(5, heads, prefix + length, 8, dtype=dtype)
    v = normal(6, heads, prefix + length, v_dim, dtype=dtype)

    actual = prefill_attention(q, k, v, scoring=Scoring(SCALE, softcap))
    expected = naive_attention(float64(q), float64(k), float64(v), softcap)

    assert (actual.shape, actual.dtype) == ((length, num_heads, v_dim), dtype)
    np.testing.assert_allclose(float64(actual), expected, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 12, 13, 19, 20, 40])
@pytest.mark.parametrize(("length", "prefix"), [(1, 0), (1, 6), (13, 0), (13, 6), (8, 8)])
def test_windowed_prefill_is_naive_attention(
    length: int, prefix: int, window: int, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GR-3: each query sees its window alone, across the edges of tiles and of the prefix.

    The fused kernel, which runs on GPUs only, gets a mask; here MLX computes it on the CPU.
    """
    monkeypatch.setattr(mlx_attention, "QUERY_TILE", 4)
    monkeypatch.setattr(mlx_attention, "_fused", lambda device, scoring: fused)
    q = normal(4, length, 4, 8)
    k, v = normal(5, 2, prefix + length, 8), normal(6, 2, prefix + length, 8)

    actual = prefill_attention(q, k, v, scoring=SCORING, window=window)
    expected = naive_attention(float64(q), float64(k), float64(v), None, window)

    assert actual.shape == (length, 4, 8)
    np.testing.assert_allclose(float64(actual), expected, atol=3e-6)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_a_windows_softcap_and_dtype(
    softcap: float | None, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GR-3: a window goes with everything else that attention can do."""
    monkeypatch.setattr(mlx_attention, "QUERY_TILE", 4)
    q, k = normal(4, 10, 6, 8, dtype=dtype), normal(5, 2, 17, 8, dtype=dtype)
    v = normal(6, 2, 17, 12, dtype=dtype)

    actual = prefill_attention(q, k, v, scoring=Scoring(SCALE, softcap), window=6)
    expected = naive_attention(float64(q), float64(k), float64(v), softcap, 6)

    assert (actual.shape, actual.dtype) == ((10, 6, 12), dtype)
    np.testing.assert_allclose(float64(actual), expected, atol=TOLERANCE[dtype])


SINKS = [-2.0, 0.0, 1.0, 3.0, 50.0, -50.0]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_sinks_take_weight_in_decoding(
    softcap: float | None, dtype: mx.Dtype, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PK-1: a sink takes weight from the keys of its query head, in rows of any length."""
    if fused and softcap is None:
        monkeypatch.setattr(mlx_attention, "_fused", lambda device, scoring: True)
    lengths = [1, 5, 12]
    q, k = normal(1, 3, 6, 8, dtype=dtype), normal(2, 3, 2, 12, 8, dtype=dtype)
    v = normal(3, 3, 2, 12, 8, dtype=dtype)

    scoring = Scoring(SCALE, softcap, mx.array(SINKS))
    actual = decode_attention(q, k, v, ragged_mask(lengths, 12), scoring)

    assert (actual.shape, actual.dtype) == ((3, 6, 8), dtype)
    for n, length in enumerate(lengths):
        keys, values = float64(k[n])[:, :length], float64(v[n])[:, :length]
        expected = naive_attention(float64(q[n])[None], keys, values, softcap, sinks=SINKS)[0]
        np.testing.assert_allclose(float64(actual[n]), expected, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_sinks_take_weight_in_a_slice(
    dtype: mx.Dtype,
    softcap: float | None,
    window: int | None,
    fused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PK-1: sinks combine with a softcap, a window and the tiles of a long slice."""
    monkeypatch.setattr(mlx_attention, "QUERY_TILE", 4)
    if fused and softcap is None:
        monkeypatch.setattr(mlx_attention, "_fused", lambda device, scoring: True)
    q, k = normal(4, 10, 6, 8, dtype=dtype), normal(5, 2, 17, 8, dtype=dtype)
    v = normal(6, 2, 17, 8, dtype=dtype)

    scoring = Scoring(SCALE, softcap, mx.array(SINKS))
    actual = prefill_attention(q, k, v, scoring, window=window)
    expected = naive_attention(float64(q), float64(k), float64(v), softcap, window, SINKS)

    assert (actual.shape, actual.dtype) == ((10, 6, 8), dtype)
    np.testing.assert_allclose(float64(actual), expected, atol=TOLERANCE[dtype])


def test_a_window_as_long_as_the_keys_changes_no_bit() -> None:
    """GR-3: as long as nothing is out of sight it is causal attention."""
    q, k, v = normal(1, 9, 2, 8), normal(2, 2, 12, 8), normal(3, 2, 12, 8)
    full = prefill_attention(q, k, v, scoring=SCORING)

    for window in (12, 13, 1000):
        assert mx.array_equal(prefill_attention(q, k, v, scoring=SCORING, window=window), full)


def test_keys_that_no_query_sees_have_no_weight_at_all() -> None:
    """KV-2: what lies before every window changes no bit of the result."""
    q, k, v = normal(1, 3, 2, 8), normal(2, 2, 12, 8), normal(3, 2, 12, 8)
    garbled_k, garbled_v = mx.array(k), mx.array(v)
    garbled_k[:, :5], garbled_v[:, :5] = 1e4, -1e4

    clean = prefill_attention(q, k, v, scoring=SCORING, window=5)

    assert mx.array_equal(
        prefill_attention(q, garbled_k, garbled_v, scoring=SCORING, window=5), clean
    )


@pytest.mark.parametrize("window", [4, 64])
def test_a_tile_attends_to_its_window_and_no_more_keys(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GR-3: a long slice's work grows with the window, not with its length squared."""
    widths: list[int] = []
    attend = mlx_attention._attend

    def noting(q: mx.array, k: mx.array, *rest: object) -> mx.array:
        widths.append(k.shape[2])
        return attend(q, k, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(mlx_attention, "QUERY_TILE", 16)
    monkeypatch.setattr(mlx_attention, "_attend", noting)
    monkeypatch.setattr(mlx_attention, "_fused", lambda device, scoring: False)
    x = normal(1, 200, 1, 4)
    prefill_attention(x, x.swapaxes(0, 1), x.swapaxes(0, 1), scoring=SCORING, window=window)

    assert len(widths) == 13
    assert max(widths) == min(200, 16 + window - 1)


def test_large_scores_do_not_overflow() -> None:
    """SC-1: scores of ±1000 give the softmax of their largest, not NaN."""
    q, k, v = normal(1, 5, 2, 8) * 300, normal(2, 2, 9, 8) * 10, normal(3, 2, 9, 8)
    expected = naive_attention(float64(q), float64(k), float64(v), None)
    mask = ragged_mask([9], 9)

    prefill = prefill_attention(q, k, v, scoring=SCORING)
    decode = decode_attention(q[-1:], k[None], v[None], mask, scoring=SCORING)

    np.testing.assert_allclose(prefill, expected, atol=2e-3)
    np.testing.assert_allclose(decode, expected[-1:], atol=2e-3)


def test_a_masked_key_has_no_weight_at_all() -> None:
    """KV-2: what lies behind a row's length changes no bit of its result."""
    q, k, v, mask = normal(1, 2, 4, 8), normal(2, 2, 2, 6, 8), normal(3, 2, 2, 6, 8), [3, 6]
    garbled_k, garbled_v = mx.array(k), mx.array(v)
    garbled_k[0, :, 3:] = 1e4
    garbled_v[0, :, 3:] = -1e4

    clean = decode_attention(q, k, v, ragged_mask(mask, 6), scoring=SCORING)
    garbled = decode_attention(q, garbled_k, garbled_v, ragged_mask(mask, 6), scoring=SCORING)

    assert mx.array_equal(clean, garbled)


@pytest.mark.parametrize("run", ["decode", "prefill"])
def test_what_ran_is_counted(run: str) -> None:
    """FW-2: each call is one dispatch, under the variant that the device gave it."""

    def total() -> int:
        counts = dispatch.counts()
        return sum(n for name, n in counts.items() if name.startswith(f"{run}_attention:"))

    before = total()
    calls: dict[str, Callable[[], mx.array]] = {
        "decode": lambda: decode_attention(
            normal(1, 1, 2, 8),
            normal(2, 1, 2, 4, 8),
            normal(3, 1, 2, 4, 8),
            ragged_mask([4], 4),
            scoring=SCORING,
        ),
        "prefill": lambda: prefill_attention(
            normal(1, 3, 2, 8), normal(2, 2, 4, 8), normal(3, 2, 4, 8), scoring=SCORING
        ),
    }
    calls[run]()

    assert total() == before + 1


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_gathered_pages_are_the_pages(dtype: mx.Dtype) -> None:
    """KV-5: a table's pages come out side by side, bit for bit, a page as often as named."""
    pool = normal(7, 9, 3, 4, 5, dtype=dtype)
    tables = mx.array([[8, 0, 3], [3, 3, 1]])

    actual = float64(gather_rows(pool, page_rows(tables, 3)))
    pages = float64(pool)[np.array(tables)]  # [N, M, Hk, S, D]

    assert (actual == pages.transpose(0, 2, 1, 3, 4).reshape(2, 3, 12, 5)).all()


@settings(deadline=None)
@given(
    slots=st.lists(st.integers(0, 6 * 4 - 1), min_size=1, max_size=10, unique=True),
    seed=st.integers(0, 99),
)
def test_a_scatter_touches_its_slots_and_nothing_else(slots: list[int], seed: int) -> None:
    """KV-5: token `t` lands at its page and offset; every other slot keeps its bits."""
    pool, x = normal(seed, 6, 2, 4, 3), normal(seed + 1, len(slots), 2, 3)
    expected = np.array(pool)
    for slot, token in zip(slots, np.array(x), strict=True):
        expected[slot // 4, :, slot % 4] = token

    scatter_rows(pool, token_rows(mx.array(slots) // 4, mx.array(slots) % 4, 2, 4), x)

    assert (np.array(pool) == expected).all()


def test_a_scatter_keeps_the_pools_dtype() -> None:
    """KV-5: tokens are rounded to what the pool stores."""
    pool, x = mx.zeros((2, 1, 2, 4), mx.bfloat16), normal(1, 1, 1, 4)
    scatter_rows(pool, token_rows(mx.array([1]), mx.array([0]), 1, 2), x)

    assert pool.dtype == mx.bfloat16
    assert mx.array_equal(pool[1:, :, 0], x.astype(mx.bfloat16))


@pytest.mark.parametrize("sinks", [None, mx.zeros(4)])
@pytest.mark.parametrize("window", [None, 5])
def test_mlx_attention_copies_no_result(
    window: int | None, sinks: mx.array | None, monkeypatch: Any
) -> None:
    """PK-1: what MLX's fused attention returns is turned by views; an index would gather it."""
    monkeypatch.setattr(mlx_attention, "_fused", lambda *_: True)
    q, k, v = (mx.zeros(shape) for shape in ((6, 4, 8), (2, 9, 8), (2, 9, 8)))
    graph = io.StringIO()
    scoring = Scoring(1.0, sinks=sinks)
    mx.export_to_dot(graph, prefill_attention(q, k, v, scoring, window=window))

    assert "Squeeze" in graph.getvalue()
    assert "Gather" not in graph.getvalue()
