from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from neve.layers import norms
from neve.layers.norms import ZeroCentredRMSNorm
from neve.metal.elementwise import norms as operations

pytestmark = pytest.mark.mlx


@pytest.fixture(autouse=True, params=[False, True], ids=["by-mlx", "by-operations"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute norms of few elements by MLX's own, or as where operations are fused on a CPU."""
    if request.param:
        monkeypatch.setattr(operations, "is_few", lambda x: x.size <= norms.FEW_ELEMENTS)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def rms_normed(x: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


def test_the_weight_of_a_zero_centred_norm_is_a_distance_from_one() -> None:
    """FA-2: `x / rms(x) * (1 + weight)`."""
    norm = ZeroCentredRMSNorm(6, eps=1e-3)
    x, weight = draw(5, 6), draw(6)
    norm.weight = mx.array(weight)

    expected = rms_normed(x, 1e-3) * (1 + weight.astype(np.float64))
    np.testing.assert_allclose(norm(mx.array(x)), expected, atol=1e-6)


def test_one_is_added_in_float32() -> None:
    """FA-2: a bfloat16 weight of 0.003 is not lost beside the one."""
    norm = ZeroCentredRMSNorm(64, eps=1e-6)
    small = mx.full((64,), 0.003).astype(mx.bfloat16)
    norm.weight = small
    x = mx.array(draw(5, 64))

    folded = mx.fast.rms_norm(x, 1 + small, 1e-6)
    expected = rms_normed(np.array(x), 1e-6) * (1 + np.array(small.astype(mx.float32)))
    np.testing.assert_allclose(norm(x), expected, rtol=1e-5)
    assert np.abs(np.array(folded) / expected - 1).max() > 1e-3


def test_norms_answer_in_the_dtype_that_they_are_asked_in() -> None:
    """FA-2: float32 inside widens no residual stream."""
    x = mx.array(draw(5, 64)).astype(mx.bfloat16)

    assert ZeroCentredRMSNorm(64, eps=1e-6)(x).dtype == mx.bfloat16


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_few_elements_and_many_give_the_same_bits(dtype: mx.Dtype, weighted: bool) -> None:
    """TG-3: a token's norm does not depend on how many tokens a step has."""
    x = mx.random.normal((norms.FEW_ELEMENTS // 64 + 1, 64), key=mx.random.key(0))
    x, weight = x.astype(dtype), mx.arange(64).astype(dtype) if weighted else None
    many = norms.rms_norm(x, weight, 1e-5)

    assert mx.array_equal(norms.rms_norm(x[:5], weight, 1e-5), many[:5])
    assert mx.array_equal(many, mx.fast.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("kind", [norms.RMSNorm, norms.ZeroCentredRMSNorm])
def test_a_layer_gives_a_token_the_same_bits_in_any_step(kind: type) -> None:
    """TG-3: so do the layers, whichever form of the weight they store."""
    layer = kind(64, eps=1e-6)
    layer.weight = mx.random.normal((64,), key=mx.random.key(1))
    x = mx.random.normal((norms.FEW_ELEMENTS // 64 + 1, 64), key=mx.random.key(2))

    assert mx.array_equal(layer(x[:3]), layer(x)[:3])


@pytest.mark.parametrize("kind", [norms.RMSNorm, norms.ZeroCentredRMSNorm])
@pytest.mark.parametrize("num_tokens", [2, norms.FEW_ELEMENTS // 64 + 1])
def test_a_norm_adds_what_it_norms(kind: type, num_tokens: int) -> None:
    """FW-2: the stream and its norm have the bits of a sum and a norm apart."""
    layer, after = kind(64, eps=1e-6), kind(64, eps=1e-2)
    x, delta = mx.random.normal((2, num_tokens, 64), key=mx.random.key(2))

    for got, want in (
        (layer.add(x, None), x),
        (layer.add(x, delta), x + delta),
        (layer.add(x, delta, after=after), x + after(delta)),
    ):
        assert mx.array_equal(got[0], want)
        assert mx.array_equal(got[1], layer(want))


@pytest.mark.parametrize("chosen", [[1, 4], [3], [0, 1, 2, 3, 4]], ids=["some", "one", "all"])
def test_rows_are_added_alone(chosen: list[int]) -> None:
    """FW-2: rows that want logits have the bits that they have among all."""
    layer = norms.RMSNorm(64, eps=1e-6)
    x, delta = mx.random.normal((2, 5, 64), key=mx.random.key(2))
    rows = mx.array(chosen)

    assert mx.array_equal(layer.add_rows(x, delta, rows), layer((x + delta)[rows]))
    assert mx.array_equal(layer.add_rows(x, None, rows), layer(x[rows]))
    assert layer.add_rows(x, delta, mx.array([], mx.int32)).shape == (0, 64)


def test_a_norm_without_weights_is_one_with_ones() -> None:
    """FW-2: `x / rms(x)`."""
    x = mx.array(draw(5, 64))

    assert mx.array_equal(norms.UnweightedRMSNorm(1e-5)(x), norms.RMSNorm(64, eps=1e-5)(x))
