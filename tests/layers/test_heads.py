from __future__ import annotations

import mlx.core as mx
import pytest

from neve.contract.forward import RopeSpec
from neve.contract.heads import HeadShape, Projected
from neve.layers.heads import prepare
from neve.layers.norms import RMSNorm, UnweightedRMSNorm
from neve.layers.rope import Rotation

pytestmark = pytest.mark.mlx

TOKENS = 3


def draw(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def rotate(x: mx.array, spec: RopeSpec) -> mx.array:
    return Rotation(mx.arange(5, 5 + TOKENS))(x, spec)


def same(got: mx.array | None, want: mx.array | None) -> bool:
    return got is not None and want is not None and bool(mx.array_equal(got, want))


def norm_of(dims: int, seed: int) -> RMSNorm:
    norm = RMSNorm(dims, eps=1e-5)
    norm.weight = draw(seed, dims)
    return norm


def test_heads_are_normed_and_then_rotated_but_values_are_not_rotated() -> None:
    """FW-2: each kind of head has its norm; the rotation comes after it."""
    q, k, v = draw(1, TOKENS, 32), draw(2, TOKENS, 16), draw(3, TOKENS, 12)
    norms, rope = (norm_of(8, 4), norm_of(8, 5), UnweightedRMSNorm(1e-5)), RopeSpec(4, 1e4)
    projected = Projected((q, k, v), HeadShape(4, 2, 8, 6), *norms, rope)

    got = prepare(projected, rotate)
    assert same(got[0], rotate(norms[0](q.reshape(TOKENS, 4, 8)), rope))
    assert same(got[1], rotate(norms[1](k.reshape(TOKENS, 2, 8)), rope))
    assert same(got[2], norms[2](v.reshape(TOKENS, 2, 6)))


def test_nothing_is_done_that_was_not_asked_for() -> None:
    """FW-2: without norms and rotation, heads are the projections."""
    rows = draw(1, TOKENS, 32)
    q, k, v = prepare(Projected((rows,), HeadShape(2, 1, 8)), rotate)

    assert k is not None
    assert v is not None
    parts = [heads.reshape(TOKENS, -1) for heads in (q, k, v)]
    assert same(mx.concatenate(parts, axis=-1), rows)


@pytest.mark.parametrize("beside", [0, 5])
def test_joined_parts_are_cut_where_the_shape_says(beside: int) -> None:
    """FW-2: one array of all gives the heads of one each, whatever lies behind them."""
    parts = (draw(1, TOKENS, 32), draw(2, TOKENS, 8), draw(3, TOKENS, 6))
    shape, rope = HeadShape(2, 1, 8, 6, query_stride=16), RopeSpec(8, 1e4)
    apart = Projected(parts, shape, rope=rope)
    rows = mx.concatenate([*parts, mx.zeros((TOKENS, beside))], axis=-1)

    for got, want in zip(
        prepare(Projected((rows,), shape, rope=rope), rotate),
        prepare(apart, rotate),
        strict=True,
    ):
        assert same(got, want)
    assert same(apart.joined, rows[:, :46])


def test_queries_may_have_something_beside_them() -> None:
    """FW-2: of each stride, the query is the front part."""
    rows = draw(1, TOKENS, 2 * 16)
    q, k, v = prepare(Projected((rows,), HeadShape(2, 0, 8, query_stride=16)), rotate)

    assert same(q, rows.reshape(TOKENS, 2, 16)[..., :8])
    assert (k, v) == (None, None)


def test_keys_and_values_may_be_one_projection() -> None:
    """FW-2: what is done to the keys does not reach the values."""
    q, k = draw(1, TOKENS, 16), draw(2, TOKENS, 8)
    projected = Projected((q, k, k), HeadShape(2, 1, 8), k_norm=norm_of(8, 3))

    assert same(prepare(projected, rotate)[2], k.reshape(TOKENS, 1, 8))
