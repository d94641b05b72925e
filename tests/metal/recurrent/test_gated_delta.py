"""The gated delta rule's kernel, run on the host, against a loop over tokens in float64."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.metal.recurrent.gated_delta import Columns, gated_delta, gated_delta_mixed
from neve.metal.runtime import dispatch, launch

from neve.metal.recurrent.gated_delta import _check_mixed, _check_plain, _unit  # isort: skip
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend
from neve.testing.recurrences import distance, gated_delta_by_token

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no C++ compiler builds bodies"),
]

EPS = 1e-6

Inputs: TypeAlias = list[np.ndarray]


@pytest.fixture(autouse=True)
def host() -> Generator[None]:
    """Run kernels on the host, checked."""
    with launch.using(HostBackend()):
        yield


def make_inputs(
    length: int,
    *,
    num_rows: int = 1,
    heads: tuple[int, int] = (2, 4),
    dims: tuple[int, int] = (32, 24),
    seed: int = 0,
) -> Inputs:
    """Return q, k, v, log_g, beta and a state of `heads` (Hk, Hv) and `dims` (Dk, Dv)."""
    rng = np.random.default_rng(seed)
    (hk, hv), (dk, dv) = heads, dims
    q, k = (unit(rng.normal(size=(num_rows, length, hk, dk))) for _ in range(2))
    v = rng.normal(size=(num_rows, length, hv, dv))
    log_g = -np.exp(rng.normal(size=(num_rows, length, hv)) - 2)
    beta = rng.random((num_rows, length, hv))
    state = rng.normal(size=(num_rows, hv, dv, dk))
    return [x.astype(np.float32) for x in (q * dk**-0.5, k, v, log_g, beta, state)]


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + EPS)


def run(inputs: Inputs, dtype: mx.Dtype = mx.float32) -> tuple[np.ndarray, np.ndarray]:
    """Apply it as the product does, with values in some dtype."""
    q, k, v, log_g, beta, state = map(mx.array, inputs)
    out, after = gated_delta(q, k, v.astype(dtype), log_g, beta, state)
    assert out.dtype == dtype
    return np.array(out.astype(mx.float32)), np.array(after)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 31, 70])
def test_the_kernel_is_the_recurrence(length: int, num_rows: int) -> None:
    """PK-1, FA-2: any number of tokens and rows, from any state; counted as a kernel."""
    inputs = make_inputs(length, num_rows=num_rows)
    before = dispatch.counts().get("gated_delta:host", 0)

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 1e-6
    assert dispatch.counts()["gated_delta:host"] == before + 1


@settings(max_examples=15)
@given(
    length=st.integers(1, 20),
    num_rows=st.integers(1, 3),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 3),
)
def test_heads_share_keys(length: int, num_rows: int, key_heads: int, group: int) -> None:
    """PK-1: a key head serves consecutive value heads, in every row."""
    heads = (key_heads, key_heads * group)
    inputs = make_inputs(length, num_rows=num_rows, heads=heads, seed=length)

    with launch.using(HostBackend()):
        assert distance(run(inputs), gated_delta_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("dims", [(64, 16), (128, 40), (256, 16)])
def test_heads_of_any_size(dims: tuple[int, int]) -> None:
    """PK-1: wide and narrow keys, and values that fill no threadgroup."""
    inputs = make_inputs(11, dims=dims)

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("cuts", [(1, 69), (8, 62), (30, 1, 39), (1,) * 12])
def test_cuts_give_the_same(cuts: tuple[int, ...]) -> None:
    """PK-1, SC-1: what a token does depends on the state alone, wherever a slice begins."""
    inputs = make_inputs(sum(cuts), num_rows=2)
    *tokens, state = inputs
    outs, start = [], 0
    for cut in cuts:
        out, state = run([*(x[:, start : start + cut] for x in tokens), state])
        outs.append(out)
        start += cut

    whole = run(inputs)
    assert distance((np.concatenate(outs, axis=1), state), whole) < 1e-6
    assert distance(whole, gated_delta_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("log_g", [0.0, -1e-9, -1e-4, -20.0, -1e5])
def test_keys_repeat_and_decays_are_extreme(log_g: float, beta: float) -> None:
    """PK-1, FA-2: a text that repeats itself, a decay of one or zero: exact, and no NaN."""
    inputs = make_inputs(70)
    inputs[1][:] = inputs[1][:, :1]
    inputs[3][:, ::2], inputs[4][:] = log_g, beta

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 2e-6


def test_a_rate_of_zero_leaves_the_state_to_fade() -> None:
    """PK-1: such a token reads, and takes up nothing."""
    inputs = make_inputs(31)
    inputs[4][:] = 0.0

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 1e-6


def test_large_values() -> None:
    """PK-1: values of a thousand are corrected as well as others."""
    inputs = make_inputs(31)
    inputs[2] *= 1000

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_outputs_have_the_dtype_of_values(dtype: mx.Dtype) -> None:
    """PK-1: sums and the state are float32, an output is rounded once."""
    inputs = make_inputs(11, num_rows=2)
    inputs[2] = np.array(mx.array(inputs[2]).astype(dtype).astype(mx.float32))
    (out, state), (expected, after) = run(inputs, dtype), gated_delta_by_token(inputs)

    assert distance((state,), (after,)) < 1e-6
    assert distance((out,), (expected,)) < (2**-8 if dtype == mx.bfloat16 else 2**-11)


# -- from a projection ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("length", [1, 11])
def test_rates_and_norms_are_made_in_the_kernel(length: int, dtype: mx.Dtype) -> None:
    """PK-1, FA-2: softplus, sigmoid and lengths as defined, from parts of joined rows."""
    rng = np.random.default_rng(length)
    q, k, v, *_, state = make_inputs(length, num_rows=2)
    q, k = 9 * q, 3 * k
    a, b = 4 * rng.normal(size=(2, 2, length, 4))
    a.flat[:4] = -30, -9, 0, 40
    log_a, dt_bias = rng.normal(size=(2, 4)).astype(np.float32)
    other = np.full((2, length, 5), np.nan)
    mixed = mx.array(np.concatenate([x.reshape(2, length, -1) for x in (q, k, v)], axis=-1))
    rows = mx.array(np.concatenate([other, b, other, a], axis=-1).astype(np.float32))
    mixed, rows = mixed.astype(dtype), rows.astype(dtype)
    got = gated_delta_mixed(
        mixed,
        rows,
        Columns(decay=14, rate=5),
        mx.array(log_a),
        mx.array(dt_bias),
        mx.array(state),
    )

    mixed, rows = (np.array(x.astype(mx.float32), np.float64) for x in (mixed, rows))
    q, k = (x.reshape(2, length, 2, 32) for x in np.split(mixed[..., :128], 2, axis=-1))
    log_g = -np.exp(log_a) * np.logaddexp(rows[..., 14:] + dt_bias, 0)
    beta = 1 / (1 + np.exp(-rows[..., 5:9]))
    v = mixed[..., 128:].reshape(v.shape)
    expected = gated_delta_by_token([unit(q) * 32**-0.5, unit(k), v, log_g, beta, state])
    out, after = (np.array(x.astype(mx.float32)) for x in got)
    assert got[0].dtype == dtype
    assert distance((after,), expected[1:]) < 2e-6
    assert distance((out,), expected[:1]) < {mx.float32: 2e-6, mx.float16: 2**-11}.get(
        dtype, 2**-8
    )


def test_keys_that_no_kernel_takes() -> None:
    """PK-1: widths that do not fill lanes are left to MLX operations."""
    inputs = make_inputs(3, dims=(16, 8))
    before = dispatch.counts().get("gated_delta:ops", 0)

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 1e-6
    assert dispatch.counts()["gated_delta:ops"] == before + 1


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_the_self_check_passes(dtype: mx.Dtype) -> None:
    """PK-1: kernel and reference agree within what a back end is held to."""
    _check_mixed((dtype,) * 3, (24, 32))
    _check_plain((mx.float32, dtype, mx.float32), (24, 32))


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-5, 0.0])
def test_eps_is_added_to_the_sum_of_squares(size: float) -> None:
    """FA-2: `x / sqrt(sum(x²) + eps)`, which for short vectors is not `x / |x|`."""
    x = np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32) * np.float32(size)

    squares = (x.astype(np.float64) ** 2).sum(axis=-1, keepdims=True)
    expected = x / np.sqrt(squares + 1e-6)
    np.testing.assert_allclose(_unit(mx.array(x)), expected, rtol=1e-5)
