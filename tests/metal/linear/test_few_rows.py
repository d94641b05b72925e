"""Linear layers of few rows: the kernel's numbers, on the host."""

from __future__ import annotations

import re

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.metal.elementwise.norms import ProbeNorm
from neve.metal.linear import few_rows
from neve.metal.linear.geometry import MAX_ROWS, Geometry, choose_geometry
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(
        emulator.compiler() is None, reason="no C++ compiler to build kernels for the host"
    ),
]

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
WIDE = Geometry(rows=8, weight_rows=4, split=4, unroll=2)


def random(*shape: int, dtype: mx.Dtype = mx.float32, scale: float = 1.0) -> mx.array:
    key = mx.random.key(sum(shape))
    return (scale * mx.random.normal(shape, key=key)).astype(dtype)


def exact(x: mx.array, weight: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32), np.float64) @ np.array(weight.astype(mx.float32)).T


def bits(x: mx.array) -> mx.array:
    return x.view(mx.uint16 if x.itemsize == 2 else mx.uint32)


@pytest.fixture(autouse=True)
def host():
    with launch.using(emulator.HostBackend()):
        yield


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_product(dtype: mx.Dtype) -> None:
    """PK-1: a product is the exact one, rounded once, whatever is past a word or a team."""
    x, weight = random(3, 776, dtype=dtype), random(13, 776, dtype=dtype)
    got = few_rows.few_rows_linear(x, weight)
    want = exact(x, weight)
    unit = {mx.float32: 2**-20, mx.float16: 2**-11, mx.bfloat16: 2**-8}[dtype]

    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(mx.float32), want, rtol=unit, atol=1e-4)


def test_bias_and_residual() -> None:
    """PK-1: what is added is added in float32, before the sum is rounded."""
    x, weight = random(1, 64, dtype=mx.bfloat16), random(9, 64, dtype=mx.bfloat16)
    bias, residual = random(9, dtype=mx.bfloat16), random(1, 9, dtype=mx.bfloat16)
    got = few_rows.few_rows_linear(x, weight, bias=bias, residual=residual)
    added = np.array(bias.astype(mx.float32)) + np.array(residual.astype(mx.float32))

    np.testing.assert_allclose(
        got.astype(mx.float32), exact(x, weight) + added, rtol=2**-8, atol=1e-5
    )


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("scale", [0.05, 40.0])
def test_gated(activation: few_rows.Activation, scale: float) -> None:
    """PK-1: gates and ups meet in one launch, also where sums are in the thousands."""
    x, weight, bias = random(4, 520), random(26, 520, scale=scale), random(26, scale=3.0)
    got = few_rows.few_rows_gated(x, weight, activation, bias=bias)
    want = few_rows.few_rows_gated_reference(x, weight, activation, bias=bias)

    assert scale < 1 or np.abs(np.array(want)).max() > 1e5
    dispatch.compare([got], [want])


@pytest.mark.parametrize("zero_centred", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1000.0])
def test_norm(zero_centred: bool, scale: float) -> None:
    """PK-1: a product of a norm is that of the norm in float64, rounded once."""
    x, weight = random(5, 776, dtype=mx.bfloat16, scale=scale), random(13, 776)
    gain = random(776, dtype=mx.bfloat16)
    norm = ProbeNorm(gain, 1e-6, zero_centred=zero_centred)
    got = few_rows.few_rows_linear(x, weight.astype(mx.bfloat16), norm=norm)
    rows = np.array(x.astype(mx.float32), np.float64)
    factor = np.array(gain.astype(mx.float32)) + zero_centred
    rows *= factor / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + 1e-6)
    want = rows @ np.array(weight.astype(mx.bfloat16).astype(mx.float32)).T

    np.testing.assert_allclose(got.astype(mx.float32), want, rtol=2**-8, atol=1e-3)


def test_a_norm_without_weight_is_left_to_operations() -> None:
    """PK-1: of norms without a weight there are too few to have a kernel compiled for them."""
    x, weight, norm = random(2, 64), random(9, 64), ProbeNorm(None, 1e-6, zero_centred=False)
    before = dispatch.counts().get("few_rows_linear:ops", 0)
    got = few_rows.few_rows_linear(x, weight, norm=norm)

    np.testing.assert_allclose(got, exact(norm(x), weight), rtol=1e-4, atol=1e-4)
    assert dispatch.counts()["few_rows_linear:ops"] == before + 1


@pytest.mark.parametrize("normed", [False, True])
def test_rows_do_not_depend_on_one_another(normed: bool) -> None:
    """PK-1: a row is the same to the bit, alone or among up to eight."""
    x, weight = random(8, 1032, dtype=mx.bfloat16), random(10, 1032, dtype=mx.bfloat16)
    gain = random(1032, dtype=mx.bfloat16)
    norm = ProbeNorm(gain, 1e-6, zero_centred=False) if normed else None
    alone = [few_rows.few_rows_linear(x[i : i + 1], weight, norm=norm) for i in range(8)]

    for num_rows in (3, 8):
        got = few_rows.few_rows_linear(x[:num_rows], weight, norm=norm)
        assert mx.array_equal(bits(got), bits(mx.concatenate(alone[:num_rows])))


@pytest.mark.parametrize("other", [(8, 4, 1), (8, 2, 2)])
def test_only_the_split_orders_sums(other: tuple[int, int, int]) -> None:
    """PK-1: padding, rows a simdgroup and words in flight leave every bit as it is."""
    x, weight = random(2, 1032), random(10, 1032)
    rows, weight_rows, unroll = other
    got = few_rows.few_rows_kernel(x, weight, Geometry(rows, weight_rows, 4, unroll))

    assert mx.array_equal(bits(got), bits(few_rows.few_rows_kernel(x, weight, WIDE)))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(1, 40), st.integers(1, 150))
def test_any_shape(num_rows: int, num_outputs: int, eighths: int) -> None:
    """PK-1: every element of the result is written, for any shape, and is right."""
    x, weight = random(num_rows, 8 * eighths), random(num_outputs, 8 * eighths)
    got = few_rows.few_rows_kernel(x, weight, WIDE)

    np.testing.assert_allclose(got, exact(x, weight), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("x", "weight", "reason"),
    [
        (random(9, 16), random(4, 16), "9 rows are not 1 to 8"),
        (random(1, 12), random(4, 12), "12 inputs are not a multiple of 8"),
        (random(1, 16), random(4, 16, dtype=mx.float16), "float16.*are not one float dtype"),
    ],
    ids=["rows", "inputs", "dtypes"],
)
def test_unsupported(x, weight, reason, caplog) -> None:
    """PK-1: what the kernel cannot take runs as MLX operations, and the reason is said."""
    dispatch._SAID.clear()
    before = dispatch.counts().get("few_rows_linear:ops", 0)
    got = few_rows.few_rows_linear(x, weight)

    np.testing.assert_allclose(got, exact(x, weight), rtol=1e-2, atol=1e-2)
    assert dispatch.counts()["few_rows_linear:ops"] == before + 1
    assert re.search(reason, caplog.text)


@settings(max_examples=200)
@given(
    st.integers(1, 8), st.integers(1, 200_000), st.integers(1, 4000), st.sampled_from((2, 4))
)
def test_geometry(num_rows: int, num_outputs: int, eighths: int, itemsize: int) -> None:
    """PK-1: what orders a sum is chosen without the rows, and all sums fit in a simdgroup."""
    shape = (num_outputs, 8 * eighths)
    chosen = choose_geometry(num_rows, shape, itemsize)

    assert chosen.split == choose_geometry(1, shape, itemsize).split
    assert num_rows <= chosen.rows <= MAX_ROWS
    assert chosen.rows * chosen.weight_rows <= 32
    assert 1 <= chosen.unroll * chosen.weight_rows <= (16 if chosen.rows == 1 else 8)
    assert chosen.simdgroups % chosen.split == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_self_check(dtype: mx.Dtype) -> None:
    """PK-1: what compares the kernel with its reference at first use agrees."""
    few_rows._check(choose_geometry(3, (13, 776), dtype.size), few_rows.Extras(), dtype)


def test_self_check_of_gates() -> None:
    """PK-1: the same holds of gated products."""
    extras = few_rows.Extras(bias=True, activation="silu")
    few_rows._check(choose_geometry(4, (26, 520), 4), extras, mx.float32)
