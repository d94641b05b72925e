from __future__ import annotations

import math
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.metal.attention import paged_attention, paged_launch, paged_plan
from neve.metal.attention.paged_attention import paged_decode, paged_prefill
from neve.metal.attention.paged_reference import (
    paged_decode_reference,
    paged_prefill_reference,
)
from neve.metal.attention.pages import Layout, Pages, random_pages
from neve.metal.attention.scoring import Scoring
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no g++: kernels cannot run here"),
]

DTYPES = [mx.float32, mx.float16, mx.bfloat16]
TOLERANCE = {mx.float32: 3e-6, mx.float16: 2e-3, mx.bfloat16: 2e-2}
SCALE = 0.3
SCORING = Scoring(SCALE)
LAYOUT = Layout(heads=2, size=16, dims=32, v_dims=32)
WHOLE, SPLIT = 1, 256  # as `longest`: in one launch, in two


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let contexts of some dozens of tokens fill several splits."""
    monkeypatch.setattr(paged_plan, "SHORTEST_SPLIT", 16)
    monkeypatch.setattr(paged_plan, "UNSPLIT", 32)


@attrs.frozen(eq=False)
class Case:
    """Three rows: 90 tokens with a hole, 123 tokens, 20 tokens; NaN wherever nobody may look.

    Behind a row's end the table has entries that would be out of bounds.
    """

    pages: Pages
    tables: mx.array
    rows: mx.array
    positions: mx.array
    q: mx.array

    @property
    def where(self) -> tuple[Any, ...]:
        return self.pages, self.tables, self.rows, self.positions


def case(dtype: mx.Dtype = mx.float32, layout: Layout = LAYOUT, group: int = 2) -> Case:
    blocks = 128 // layout.size
    ids = np.random.default_rng(1).permutation(np.arange(1, 3 * blocks + 1))
    tables = ids.reshape(3, blocks).astype(np.int32)
    tables[0, 1], tables[2, 0] = 0, -1
    ends = [90, 123, 20]
    held = random_pages(dtype, 3 * blocks + 1, layout)
    keys, values = held.keys, held.values
    keys[0], values[0] = mx.nan, mx.nan
    for row, end in enumerate(ends):
        page, offset = int(tables[row, (end - 1) // layout.size]), end % layout.size
        if offset:
            keys[page, :, offset:], values[page, :, offset:] = mx.nan, mx.nan
        tables[row, (end - 1) // layout.size + 1 :] = 9999
    q = mx.random.normal((4, layout.heads * group, layout.dims), key=mx.random.key(5))
    rows, positions = mx.array([2, 1, 0, 1], mx.int32), mx.array([19, 122, 89, -1], mx.int32)
    pages = Pages(keys, values, held.fence)
    return Case(pages, mx.array(tables), rows, positions, q.astype(dtype))


def naive(
    q: mx.array,
    pages: Pages,
    tables: mx.array,
    rows: mx.array,
    positions: mx.array,
    *,
    scale: float = SCALE,
    softcap: float | None = None,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> np.ndarray:
    """Attend one query after the other, head by head, in float64."""
    query, keys, values = (
        np.array(x.astype(mx.float32), np.float64) for x in (q, pages.keys, pages.values)
    )
    table, size, heads = np.array(tables), pages.size, keys.shape[1]
    extra: Any = None if sinks is None else sinks.tolist()
    out = np.zeros((*query.shape[:2], values.shape[-1]))
    for n in range(len(query)):
        row, position = int(np.array(rows)[n]), int(np.array(positions)[n])
        first = 0 if window is None else max(0, position - window + 1)
        seen = [t for t in range(first, position + 1) if table[row, t // size] > 0]
        if not seen:
            continue
        at = [(int(table[row, t // size]), t % size) for t in seen]
        for head in range(query.shape[1]):
            hk = head * heads // query.shape[1]
            scores = np.array([keys[p, hk, i] @ query[n, head] * scale for p, i in at])
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            sink = [] if extra is None else [extra[head]]
            most = max([*scores, *sink])
            weights = np.exp(scores - most)
            total = weights.sum() + sum(math.exp(s - most) for s in sink)
            out[n, head] = weights @ np.array([values[p, hk, i] for p, i in at]) / total
    return out


def over(window: int | None = None, **scoring: Any) -> dict[str, Any]:
    """Return the keywords for operations that attend as `naive` does with these."""
    return {"scoring": Scoring(SCALE, **scoring), "window": window}


def assert_close(actual: mx.array, expected: np.ndarray, dtype: mx.Dtype) -> None:
    assert (actual.shape, actual.dtype) == (expected.shape, dtype)
    got = np.array(actual.astype(mx.float32), np.float64)
    size = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, atol=TOLERANCE[dtype] * size)


@pytest.mark.parametrize("longest", [WHOLE, SPLIT])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_any_length_attend_to_their_pages(dtype: mx.Dtype, longest: int) -> None:
    """PK-1: each row sees its own tokens: no null page, nothing behind its end, no other's."""
    c = case(dtype)
    with launch.using(emulator.HostBackend()):
        actual = paged_decode(c.q, *c.where, longest=longest, scoring=SCORING)

    assert_close(actual, naive(c.q, *c.where), dtype)
    assert not mx.any(actual[3]).item()


@pytest.mark.parametrize("longest", [WHOLE, SPLIT])
def test_a_row_without_tokens_reads_no_page_of_its_own(longest: int) -> None:
    """PK-1: entries behind a row's end are not followed, the first of an empty row included."""
    c = case()
    tables, at = mx.full(c.tables.shape, 9999, mx.int32), mx.full((4,), -1, mx.int32)
    with launch.using(emulator.HostBackend()):
        actual = paged_decode(
            c.q, c.pages, tables, c.rows, at, longest=longest, scoring=SCORING
        )

    assert not mx.any(actual).item()


@pytest.mark.parametrize(
    ("dtype", "layout", "group"),
    [
        (mx.bfloat16, Layout(heads=1, size=16, dims=80, v_dims=64), 3),
        (mx.bfloat16, Layout(heads=1, size=32, dims=512, v_dims=512), 5),
        (mx.float32, Layout(heads=1, size=8, dims=16, v_dims=24), 11),
    ],
)
def test_heads_of_any_size(dtype: mx.Dtype, layout: Layout, group: int) -> None:
    """PK-1: idle lanes, heads on several simdgroups, pages shorter than what a lane takes."""
    c = case(dtype, layout, group)
    with launch.using(emulator.HostBackend()):
        actual = paged_decode(c.q, *c.where, longest=SPLIT, scoring=SCORING)

    assert_close(actual, naive(c.q, *c.where), dtype)


@pytest.mark.parametrize("longest", [WHOLE, SPLIT])
def test_sinks_and_bounds(longest: int) -> None:
    """PK-1: bounded scores, and sinks that take weight once, however many splits there are."""
    c = case()
    sinks = mx.array([-2.0, 0.0, 1.0, 1000.0])
    with launch.using(emulator.HostBackend()):
        actual = paged_decode(
            c.q, *c.where, longest=longest, scoring=Scoring(SCALE, 1.5, sinks)
        )

    assert_close(actual, naive(c.q, *c.where, softcap=1.5, sinks=sinks), mx.float32)
    assert not mx.any(actual[:, 3]).item()


@settings(max_examples=12, deadline=None)
@given(
    positions=st.lists(st.integers(-1, 89), min_size=1, max_size=3),
    window=st.none() | st.integers(1, 130),
    hole=st.sets(st.integers(0, 5)),
    longest=st.sampled_from([WHOLE, SPLIT]),
)
def test_any_positions_windows_and_holes(
    positions: list[int], window: int | None, hole: set[int], longest: int
) -> None:
    """PK-1: a row sees its window, less what lies in null pages; nothing at all gives zeros."""
    c = case()
    tables = mx.array(c.tables)
    for entry in hole:
        tables[0, entry] = 0
    rows = mx.zeros(len(positions), mx.int32)
    where = (c.pages, tables, rows, mx.array(positions, mx.int32))
    q = c.q[: len(positions)]
    with launch.using(emulator.HostBackend(orders=(2,))):
        actual = paged_decode(q, *where, longest=longest, scoring=SCORING, window=window)

    assert_close(actual, naive(q, *where, window=window), mx.float32)


@pytest.mark.parametrize("longest", [WHOLE, SPLIT])
def test_scores_of_a_thousand(longest: int) -> None:
    """PK-1: the greatest score may come first, last or in between; no weight overflows."""
    c = case()
    keys = mx.array(c.pages.keys)
    for row, t, score in ((2, 19, 1000.0), (1, 0, 1000.0), (1, 60, -1000.0), (0, 50, 999.0)):
        keys[c.tables[row, t // 16].item(), :, t % 16] = score
    q = mx.zeros_like(c.q)
    q[..., 0] = 1.0
    pages = attrs.evolve(c.pages, keys=keys)
    where = (pages, c.tables, c.rows, c.positions)
    with launch.using(emulator.HostBackend(orders=(0,))):
        actual = paged_decode(q, *where, longest=longest, scoring=Scoring(1.0))

    assert_close(actual, naive(q, *where, scale=1.0), mx.float32)


@pytest.mark.parametrize("longest", [WHOLE, SPLIT])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("slope", [-2.0, -0.5, 0.03, 0.5, 2.0])
def test_scores_may_rise_or_fall_along_a_context(
    slope: float, dtype: mx.Dtype, longest: int
) -> None:
    """PK-1: what weights are relative to follows the greatest score, before they overflow."""
    drawn = random_pages(dtype, 17, Layout(heads=2, size=16, dims=64, v_dims=64))
    nth = mx.arange(17 * 16).reshape(17, 1, 16, 1)
    keys = (nth * (slope / 64) + 0.3 * drawn.keys).astype(dtype)
    tables, row = mx.arange(1, 17, dtype=mx.int32)[None], mx.array([0], mx.int32)
    where = (attrs.evolve(drawn, keys=keys), tables, row, mx.array([250], mx.int32))
    q = mx.ones((1, 4, 64), dtype)
    with launch.using(emulator.HostBackend(orders=(0,))):
        actual = paged_decode(q, *where, longest=longest, scoring=Scoring(1.0))

    assert_close(actual, naive(q, *where, scale=1.0), dtype)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(("length", "start"), [(1, 60), (3, 87), (4, 0), (11, 79), (16, 47)])
def test_a_short_slice_is_causal_over_its_pages(
    length: int, start: int, window: int | None
) -> None:
    """PK-1: each query sees the keys up to its own, whichever tile it falls into."""
    c = case()
    q = mx.random.normal((length, 4, 32), key=mx.random.key(6))
    row, at = mx.array([0], mx.int32), mx.array([start], mx.int32)
    what = (q, c.pages, c.tables, row, at)
    with launch.using(emulator.HostBackend(orders=(1,))):
        actual = paged_prefill(*what, start=start, scoring=SCORING, window=window)
    one_by_one = (mx.zeros(length, mx.int32), mx.arange(start, start + length))

    assert_close(actual, naive(q, c.pages, c.tables, *one_by_one, window=window), mx.float32)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"window": 9},
        {"softcap": 1.5},
        {"sinks": mx.array([0.0, 1.0, 2.0, 3.0])},
        {"sinks": mx.array([0.0, 1.0, 2.0, 3.0]), "window": 9},
        {"sinks": mx.array([0.0, 1.0, 2.0, 3.0]), "softcap": 1.5},
    ],
)
def test_a_long_slice_attends_to_gathered_pages(how: Any) -> None:
    """PK-1: a slice that is worth a copy of its pages gets the same answer."""
    c = case()
    q = mx.random.normal((30, 4, 32), key=mx.random.key(6))
    what = (q, c.pages, c.tables, mx.array([1], mx.int32), mx.array([93], mx.int32))
    with launch.using(emulator.HostBackend(orders=(0,))):
        actual = paged_prefill(*what, start=93, **over(**how))
    one_by_one = (mx.full(30, 1, mx.int32), mx.arange(93, 123))

    assert_close(actual, naive(q, c.pages, c.tables, *one_by_one, **how), mx.float32)


@pytest.mark.parametrize("how", [{}, {"window": 9}, {"softcap": 1.5}])
@pytest.mark.parametrize("dtype", DTYPES)
def test_references_are_naive_attention(dtype: mx.Dtype, how: Any) -> None:
    """PK-1: what kernels are compared with is right itself."""
    c = case(dtype)
    sinks = mx.array([-2.0, 0.0, 1.0, 1000.0])
    decoded = paged_decode_reference(c.q, *c.where, longest=128, **over(sinks=sinks, **how))
    row, at = mx.array([0], mx.int32), mx.array([86], mx.int32)
    slice_ = paged_prefill_reference(
        c.q, c.pages, c.tables, row, at, start=86, **over(sinks=sinks, **how)
    )
    one_by_one = (mx.zeros(4, mx.int32), mx.arange(86, 90))

    assert_close(decoded, naive(c.q, *c.where, sinks=sinks, **how), dtype)
    expected = naive(c.q, c.pages, c.tables, *one_by_one, sinks=sinks, **how)
    assert_close(slice_, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoding_passes_its_self_check(dtype: mx.Dtype) -> None:
    """PK-1: what a GPU is asked at the first use, the host answers rightly."""
    c = case(dtype)
    shape = paged_launch.shape_of(c.q, c.pages, Scoring(SCALE))
    with launch.using(emulator.HostBackend(orders=(0,))):
        paged_launch.check(shape)


def test_a_slice_passes_its_self_check() -> None:
    """PK-1: the kernel for slices answers rightly, too, in one launch and in two."""
    c = case()
    shape = paged_launch.shape_of(c.q, c.pages, Scoring(SCALE), length=4)
    with launch.using(emulator.HostBackend(orders=(0,))):
        paged_launch.check(shape)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("t < to", "t <= to"),
        ("block > 0 &&", ""),
        ("acc[r * VEC + e] *= fade;", ""),
    ],
)
def test_wrong_kernels_are_noticed(right: str, wrong: str) -> None:
    """PK-1: these cases see a key too many, the null page, and a missing rescale."""
    c = case()
    keys = mx.where(mx.isnan(c.pages.keys), 5.0, c.pages.keys)
    values = mx.where(mx.isnan(c.pages.values), 5.0, c.pages.values)
    where = (Pages(keys, values, c.pages.fence), *c.where[1:])

    def broken(name: str, body: str) -> str:
        assert name != "paged_attention" or right in body
        return body.replace(right, wrong)

    with launch.using(emulator.HostBackend(orders=(0,), rewrite=broken)):
        actual = paged_decode(c.q, *where, longest=WHOLE, scoring=SCORING)
    with pytest.raises(AssertionError):
        assert_close(actual, naive(c.q, *where), mx.float32)


def test_other_dtypes_and_sizes_run_as_operations() -> None:
    """PK-1: what the kernel cannot take is counted as operations, and right."""
    c = case(mx.float32, Layout(heads=2, size=16, dims=12, v_dims=8))
    before = dispatch.counts().get("paged_decode:ops", 0)
    with launch.using(emulator.HostBackend()):
        actual = paged_decode(c.q, *c.where, longest=128, scoring=SCORING)
        mixed = case().q.astype(mx.bfloat16)
        paged_decode(mixed, *case().where, longest=128, scoring=SCORING)

    assert_close(actual, naive(c.q, *c.where), mx.float32)
    assert dispatch.counts()["paged_decode:ops"] == before + 2


def test_slices_are_read_in_place_while_they_are_short() -> None:
    """PK-1: up to `SHORT_SLICE` queries no page is copied."""
    c = case()
    q = mx.random.normal((paged_attention.SHORT_SLICE + 1, 4, 32), key=mx.random.key(6))
    row, at = mx.array([1], mx.int32), mx.array([100], mx.int32)
    before = dispatch.counts().get("gather_pages:host", 0)
    with launch.using(emulator.HostBackend(orders=(0,))):
        paged_prefill(q[:-1], c.pages, c.tables, row, at, start=100, scoring=SCORING)
        assert dispatch.counts().get("gather_pages:host", 0) == before
        paged_prefill(q, c.pages, c.tables, row, at, start=100, scoring=SCORING)

    assert dispatch.counts()["gather_pages:host"] == before + 1
