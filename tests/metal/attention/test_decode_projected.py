from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest

from neve.layers.norms import RMSNorm, UnweightedRMSNorm, ZeroCentredRMSNorm
from neve.metal.attention import paged_plan
from neve.metal.attention.decode_projected import decode_projected
from neve.metal.attention.head_shape import HeadShape, Norms, Slots, Turns
from neve.metal.attention.heads import prepare_heads
from neve.metal.attention.paged_attention import paged_decode
from neve.metal.attention.pages import Layout, Pages, random_pages
from neve.metal.attention.scoring import Scoring
from neve.metal.elementwise.norms import Norm
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no g++ builds kernels here"),
]

TOLERANCE = {mx.float32: 2e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}
PAGE_SIZE, NUM_PAGES, ROWS = 16, 24, 3


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(paged_plan, "SHORTEST_SPLIT", 16)
    monkeypatch.setattr(paged_plan, "UNSPLIT", 32)
    with launch.using(HostBackend()):
        yield


def draw(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def weighted(kind: type[RMSNorm] | type[ZeroCentredRMSNorm], dims: int, seed: int) -> Norm:
    norm = kind(dims, eps=1e-3)
    norm.weight = draw(seed, dims)
    return norm


@attrs.frozen(eq=False)
class Case:
    """Heads, and what is done to them; three sequences of 101, 70 and 18 tokens.

    The second has a hole, and no page for its own token.
    """

    shape: HeadShape
    norms: Norms = (None, None, None)
    rotated: int = 0
    interleaved: bool = False
    dtype: mx.Dtype = mx.float32
    scoring: Scoring = attrs.field(factory=lambda: Scoring(0.2))
    window: int | None = None

    @property
    def turns(self) -> Turns | None:
        if not self.rotated:
            return None
        return Turns.by(draw(3, ROWS, self.rotated // 2), interleaved=self.interleaved)

    def projected(self) -> mx.array:
        return draw(4, ROWS, self.shape.ends[2] + 8, dtype=self.dtype)

    def pages(self) -> Pages:
        shape = self.shape
        layout = Layout(shape.kv_heads or 2, PAGE_SIZE, shape.head_dim, shape.value_dim)
        pages = random_pages(self.dtype, NUM_PAGES, layout)
        mx.eval(pages.keys, pages.values, pages.fence)
        return pages

    def slots(self) -> Slots:
        ids = np.random.default_rng(1).permutation(np.arange(1, 22)).reshape(3, 7)
        ids[0, 2] = ids[0, 4] = 0
        positions = mx.array([100, 69, 17], mx.int32)
        return Slots(mx.array(ids.astype(np.int32)), mx.array([2, 0, 1], mx.int32), positions)


CASES = {
    "plain": Case(HeadShape(4, 2, 32)),
    "weighted": Case(
        HeadShape(4, 2, 128),
        (weighted(RMSNorm, 128, 1), weighted(RMSNorm, 128, 2), None),
        rotated=128,
    ),
    "gated": Case(
        HeadShape(4, 2, 64, query_stride=128),
        (weighted(ZeroCentredRMSNorm, 64, 1), weighted(ZeroCentredRMSNorm, 64, 2), None),
        rotated=16,
    ),
    "values-normed": Case(
        HeadShape(2, 1, 512),
        (weighted(RMSNorm, 512, 1), weighted(RMSNorm, 512, 2), UnweightedRMSNorm(1e-3)),
        rotated=512,
        window=40,
    ),
    "interleaved": Case(HeadShape(6, 2, 64, 32), rotated=48, interleaved=True),
    "half": Case(HeadShape(4, 2, 64), rotated=64, dtype=mx.float16),
    "queries": Case(HeadShape(4, 0, 64), (weighted(RMSNorm, 64, 1), None, None), rotated=64),
    "bounded": Case(HeadShape(8, 1, 64), dtype=mx.bfloat16, scoring=Scoring(0.2, softcap=3.0)),
}


def one(case: Case, longest: int) -> tuple[mx.array, mx.array, Pages]:
    """Return what one launch computes, its fence, and the pages after it."""
    pages = case.pages()
    out, fence = decode_projected(
        case.projected(),
        pages,
        case.slots(),
        case.turns,
        shape=case.shape,
        norms=case.norms,
        longest=longest,
        scoring=case.scoring,
        window=case.window,
    )
    mx.eval(out, fence)
    return out, fence, pages


def two(case: Case, longest: int) -> tuple[mx.array, mx.array, Pages]:
    """Return the same of two launches."""
    pages, slots = case.pages(), case.slots()
    stored = (pages, slots) if case.shape.kv_heads else (None, None)
    q, fence = prepare_heads(
        case.projected(), *stored, case.turns, shape=case.shape, norms=case.norms
    )
    fence = pages.fence if fence is None else fence
    where = (slots.tables, slots.rows, slots.positions)
    after = attrs.evolve(pages, fence=fence)
    how: Any = {"scoring": case.scoring, "longest": longest, "window": case.window}
    out = paged_decode(q, after, *where, **how)
    mx.eval(out, fence)
    return out, fence, pages


def plain(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32))


@pytest.mark.parametrize("longest", [1, 128])
@pytest.mark.parametrize("name", CASES)
def test_one_launch_does_what_two_do(name: str, longest: int) -> None:
    """PK-1: results, pages and the fence are those of making heads, then attending."""
    case, before = CASES[name], dispatch.counts()
    out, fence, pages = one(case, longest)
    assert dispatch.counts()["decode_projected:host"] > before.get("decode_projected:host", 0)
    want, want_fence, want_pages = two(case, longest)

    assert (out.shape, out.dtype, fence.item()) == (want.shape, want.dtype, want_fence.item())
    for got, other in (
        (out, want),
        (pages.keys, want_pages.keys),
        (pages.values, want_pages.values),
    ):
        tolerance = TOLERANCE[case.dtype] * max(1.0, np.abs(plain(other)).max())
        np.testing.assert_allclose(plain(got), plain(other), atol=tolerance)


@pytest.mark.parametrize("longest", [1, 128])
def test_only_the_tokens_own_places_are_written(longest: int) -> None:
    """KV-2: of all pages a launch changes one place a row, in each head, and no null block.

    A token whose entry is null is written nowhere.
    """
    case = CASES["weighted"]
    before, (_, _, after), slots = case.pages(), one(case, longest), case.slots()
    rows, positions, tables = map(np.array, (slots.rows, slots.positions, slots.tables))
    blocks = tables[rows, positions // PAGE_SIZE]
    own = set(zip(blocks, positions % PAGE_SIZE, strict=True))
    own = {(block, place) for block, place in own if block}

    assert len(own) == ROWS - 1
    for old, new in ((before.keys, after.keys), (before.values, after.values)):
        changed = np.argwhere((plain(old) != plain(new)).any(axis=-1))
        assert {(block, place) for block, _, place in changed.tolist()} == own
        assert len(changed) == len(own) * case.shape.kv_heads


@pytest.mark.parametrize(
    "case",
    [
        Case(HeadShape(4, 2, 64), rotated=24),
        Case(HeadShape(4, 2, 64, query_stride=68)),
        Case(HeadShape(64, 1, 64)),
        Case(HeadShape(4, 2, 64), (weighted(RMSNorm, 64, 1), None, None), dtype=mx.bfloat16),
    ],
    ids=["half-a-word", "between-words", "many-queries", "two-dtypes"],
)
def test_what_one_launch_does_not_take_is_done_in_two(case: Case) -> None:
    """PK-1: heads that lanes cannot share, or that several threadgroups would make."""
    before = dispatch.counts()
    out, _, pages = one(case, 128)
    want, _, want_pages = two(case, 128)

    assert dispatch.counts().get("decode_projected:host") == before.get("decode_projected:host")
    assert mx.array_equal(out, want).item()
    assert mx.array_equal(pages.keys, want_pages.keys).item()
