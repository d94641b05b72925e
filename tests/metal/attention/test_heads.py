from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import mlx.core as mx
import numpy as np
import pytest

from neve.contract.forward import RopeSpec
from neve.contract.heads import Projected
from neve.layers.heads import prepare
from neve.layers.norms import RMSNorm, UnweightedRMSNorm, ZeroCentredRMSNorm
from neve.layers.rope import Rotation
from neve.metal.attention import heads
from neve.metal.attention.head_shape import HeadShape, Norms, Slots, Turns
from neve.metal.attention.pages import Pages
from neve.metal.elementwise.norms import Norm
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no g++ builds kernels here"),
]

TOLERANCE = {mx.float32: 2e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}
PAGE_SIZE = 4
EPS = 1e-3


@pytest.fixture(autouse=True)
def _host() -> Iterator[None]:
    with launch.using(HostBackend()):
        yield


def draw(seed: int, *shape: int, dtype: mx.Dtype = mx.float32, size: float = 1.0) -> mx.array:
    return (size * mx.random.normal(shape, key=mx.random.key(seed))).astype(dtype)


def make_norm(kind: str, dims: int, dtype: mx.Dtype, seed: int) -> Norm | None:
    if kind == "none":
        return None
    if kind == "plain":
        return UnweightedRMSNorm(EPS)
    norm = (RMSNorm if kind == "weighted" else ZeroCentredRMSNorm)(dims, eps=EPS)
    norm.weight = draw(seed, dims, dtype=dtype)
    return norm


@attrs.frozen
class Case:
    """A geometry, and what is done to its heads."""

    shape: HeadShape
    norms: tuple[str, str, str] = ("none", "none", "none")
    rope: RopeSpec | None = None
    dtype: mx.Dtype = mx.float32
    beside: int = 0

    def rows(self, num_tokens: int, size: float = 1.0) -> mx.array:
        width = self.shape.ends[2] + self.beside
        return draw(1, num_tokens, width, dtype=self.dtype, size=size)

    def made_norms(self) -> Norms:
        dims = (self.shape.head_dim, self.shape.head_dim, self.shape.value_dim)
        q, k, v = (
            make_norm(kind, n, self.dtype, 2 + i)
            for i, (kind, n) in enumerate(zip(self.norms, dims, strict=True))
        )
        return q, k, v


CASES = {
    "plain": Case(HeadShape(2, 1, 8)),
    "qwen3": Case(
        HeadShape(4, 2, 128), ("weighted", "weighted", "none"), RopeSpec(128, 1e4), mx.bfloat16
    ),
    "half-precision": Case(
        HeadShape(2, 2, 64), ("weighted", "weighted", "none"), RopeSpec(64, 1e4), mx.float16
    ),
    "gated": Case(
        HeadShape(2, 1, 256, query_stride=512),
        ("zero-centred", "zero-centred", "none"),
        RopeSpec(64, 1e4),
        mx.bfloat16,
    ),
    "values-normed": Case(
        HeadShape(2, 1, 512), ("weighted", "weighted", "plain"), RopeSpec(512, 1e4, scale=1.3)
    ),
    "interleaved": Case(
        HeadShape(3, 1, 80, 40), ("plain", "none", "none"), RopeSpec(20, 1e4, True), beside=6
    ),
    "odd-halves": Case(
        HeadShape(2, 1, 96, 33), ("none", "weighted", "weighted"), RopeSpec(18, 1e4)
    ),
}


def angles(spec: RopeSpec | None, positions: mx.array) -> Turns | None:
    if spec is None:
        return None
    freq = spec.theta ** (-mx.arange(0, spec.dims, 2) / spec.dims)
    turn = positions[:, None].astype(mx.float32) * freq
    factors = mx.concatenate([mx.cos(turn), mx.sin(turn)], axis=-1) * spec.scale
    return Turns(factors, spec.interleaved)


def make_pages(case: Case, num_blocks: int = 6) -> Pages:
    shape = case.shape
    keys = draw(7, num_blocks, shape.kv_heads, PAGE_SIZE, shape.head_dim, dtype=case.dtype)
    values = draw(8, num_blocks, shape.kv_heads, PAGE_SIZE, shape.value_dim, dtype=case.dtype)
    fence = mx.array([5], mx.int32)
    mx.eval(keys, values, fence)
    return Pages(keys, values, fence)


def slots_of(positions: Sequence[int], rows: Sequence[int]) -> Slots:
    """Return places in two sequences; the first one's third page is the null block."""
    tables = mx.array([[1, 4, 0], [2, 5, 3], [-1, -1, -1]], mx.int32)
    return Slots(tables, mx.array([*rows], mx.int32), mx.array([*positions], mx.int32))


def plain(x: mx.array | None) -> np.ndarray:
    assert x is not None
    return np.array(x.astype(mx.float32))


def assert_close(got: mx.array | None, want: mx.array | None, dtype: mx.Dtype) -> None:
    a, b = plain(got), plain(want)

    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, atol=TOLERANCE[dtype] * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1.0, 1000.0])
def test_kernel_and_reference_agree(name: str, size: float) -> None:
    """PK-1: queries and pages are those of norm, rotation and scatter, whatever their size."""
    case = CASES[name]
    slots = slots_of([0, 3, 4, 7, 11], [0, 0, 0, 0, 1])
    arguments = (angles(case.rope, slots.positions), case.shape, case.made_norms())
    mine, other = make_pages(case), make_pages(case)
    rows = case.rows(5, size)

    q, fence = heads.prepare_heads(
        rows, mine, slots, arguments[0], shape=case.shape, norms=arguments[2]
    )
    mx.eval(q, fence)
    want, _ = heads.prepare_heads_reference(rows, other, slots, *arguments)

    assert_close(q, want, case.dtype)
    assert_close(mine.keys, other.keys, case.dtype)
    assert_close(mine.values, other.values, case.dtype)
    assert fence is not None
    assert fence.item() == 6


@pytest.mark.parametrize("name", ["qwen3", "gated", "interleaved"])
def test_the_reference_is_what_layers_do(name: str) -> None:
    """PK-1: in float32, `layers.heads.prepare` gives the same heads."""
    case = attrs.evolve(CASES[name], dtype=mx.float32)
    slots = slots_of([0, 3, 4], [1, 1, 1])
    turns, norms, rows = angles(case.rope, slots.positions), case.made_norms(), case.rows(3)
    projected = Projected((rows,), case.shape, *norms, case.rope)
    q, k, v = prepare(projected, Rotation(slots.positions))

    pages = make_pages(case)
    got, _ = heads.prepare_heads_reference(rows, pages, slots, turns, case.shape, norms)
    blocks, offsets = mx.array([2, 2, 5]), mx.array([0, 3, 0])
    assert_close(got, q, mx.float32)
    assert_close(pages.keys[blocks, :, offsets], k, mx.float32)
    assert_close(pages.values[blocks, :, offsets], v, mx.float32)


def test_nothing_else_is_written() -> None:
    """PK-1: every place of the pools but the tokens' own keeps its bits, the null block too."""
    case = CASES["plain"]
    slots = slots_of([5, 8, 2, 0], [0, 0, 1, 2])  # page 2 of row 0 and all of row 2 are null
    pages, before = make_pages(case), make_pages(case)
    mx.eval(heads.prepare_heads(case.rows(4), pages, slots, None, shape=case.shape))

    for now, then in ((pages.keys, before.keys), (pages.values, before.values)):
        changed = np.argwhere((plain(now) != plain(then)).any(axis=-1))
        assert changed.tolist() == [[2, 0, 2], [4, 0, 1]]


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_queries_alone_need_no_pages(num_tokens: int) -> None:
    """PK-1: a layer that reads another's keys has queries normed and rotated, nothing else."""
    case = Case(HeadShape(3, 0, 16), ("weighted", "none", "none"), RopeSpec(16, 1e4))
    turns = angles(case.rope, mx.arange(num_tokens))
    norms, rows = case.made_norms(), case.rows(num_tokens)

    q, fence = heads.prepare_heads(rows, None, None, turns, shape=case.shape, norms=norms)
    want, _ = heads.prepare_heads_reference(rows, None, None, turns, case.shape, norms)
    assert_close(q, want, mx.float32)
    assert fence is None


@pytest.mark.parametrize("name", ["qwen3", "half-precision", "plain"])
def test_the_self_check_passes(name: str) -> None:
    """PK-1: what a GPU runs before the first use accepts the kernel."""
    case = CASES[name]
    turns = angles(case.rope, mx.arange(2))

    heads._check(case.rows(2), make_pages(case), turns, case.shape, case.made_norms())


def test_the_self_check_sees_a_wrong_rotation() -> None:
    """PK-1: a body that forgets the sign fails it."""
    case = CASES["half-precision"]

    def rewrite(_: str, body: str) -> str:
        return body.replace("(leads ? -z : z)", "z")

    turns = angles(case.rope, mx.arange(2))
    with (
        launch.using(HostBackend(rewrite=rewrite)),
        pytest.raises(dispatch.KernelMismatchError),
    ):
        heads._check(case.rows(2), make_pages(case), turns, case.shape, case.made_norms())


@pytest.mark.parametrize(
    ("case", "pool"),
    [
        (Case(HeadShape(2, 1, 8)), mx.bfloat16),
        (Case(HeadShape(2, 1, 4)), mx.float32),
        (Case(HeadShape(2, 1, 16), rope=RopeSpec(8, 1e4)), mx.float32),
        (Case(HeadShape(2, 1, 16, 9), rope=RopeSpec(16, 1e4, True)), mx.float32),
    ],
    ids=["dtype", "narrow", "rotation", "pairs"],
)
def test_the_reference_runs_where_the_kernel_cannot(case: Case, pool: mx.Dtype) -> None:
    """PK-1: pages of another dtype and the smallest heads are prepared in operations."""
    slots = slots_of([2, 5], [0, 1])
    pages = make_pages(attrs.evolve(case, dtype=pool))
    before = dispatch.counts().get("prepare_heads:ops", 0)
    q, fence = heads.prepare_heads(
        case.rows(2), pages, slots, angles(case.rope, slots.positions), shape=case.shape
    )

    assert q.shape == (2, 2, case.shape.head_dim)
    assert fence is pages.fence
    assert dispatch.counts()["prepare_heads:ops"] == before + 1
