"""Mamba-2's kernel, run on the host, against a loop over tokens in float64."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.metal.recurrent.mamba2 import Rates, _check_mixed, _check_plain, mamba2, mamba2_mixed
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend
from neve.testing.recurrences import distance, mamba2_by_token

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no C++ compiler builds bodies"),
]

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
    dims: tuple[int, int] = (24, 32),
    seed: int = 0,
) -> Inputs:
    """Return x, dt, a, b, c and a state of `heads` (G, H) and `dims` (P, n)."""
    rng = np.random.default_rng(seed)
    (groups, num_heads), (p, n) = heads, dims
    x = rng.normal(size=(num_rows, length, num_heads, p))
    dt = np.exp(rng.normal(size=(num_rows, length, num_heads)) - 2)
    a = -np.exp(rng.normal(size=num_heads))
    b, c = rng.normal(size=(2, num_rows, length, groups, n))
    state = rng.normal(size=(num_rows, num_heads, p, n))
    return [t.astype(np.float32) for t in (x, dt, a, b, c, state)]


def run(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Apply it as the product does."""
    x, dt, a, b, c, state = map(mx.array, inputs)
    out, after = mamba2(x, dt, a, b, c, state, chunk=64)
    return np.array(out), np.array(after)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 31, 70])
def test_the_kernel_is_the_recurrence(length: int, num_rows: int) -> None:
    """PK-1, FA-7: any number of tokens and rows, from any state; counted as a kernel."""
    inputs = make_inputs(length, num_rows=num_rows)
    before = dispatch.counts().get("mamba2:host", 0)

    assert distance(run(inputs), mamba2_by_token(inputs)) < 1e-6
    assert dispatch.counts()["mamba2:host"] == before + 1


@settings(max_examples=15)
@given(
    length=st.integers(1, 20),
    num_rows=st.integers(1, 3),
    groups=st.integers(1, 3),
    size=st.integers(1, 3),
)
def test_heads_share_groups(length: int, num_rows: int, groups: int, size: int) -> None:
    """PK-1: a group serves consecutive heads, in every row."""
    inputs = make_inputs(length, num_rows=num_rows, heads=(groups, groups * size), seed=length)

    with launch.using(HostBackend()):
        assert distance(run(inputs), mamba2_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("dims", [(16, 64), (40, 128), (16, 256)])
def test_heads_of_any_size(dims: tuple[int, int]) -> None:
    """PK-1: wide and narrow states, and inputs that fill no threadgroup."""
    inputs = make_inputs(11, dims=dims)

    assert distance(run(inputs), mamba2_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("cuts", [(1, 69), (8, 62), (30, 1, 39), (1,) * 12])
def test_cuts_give_the_same(cuts: tuple[int, ...]) -> None:
    """PK-1, SC-1: what a token does depends on the state alone, wherever a slice begins."""
    x, dt, a, b, c, state = inputs = make_inputs(sum(cuts), num_rows=2)
    outs, start = [], 0
    for cut in cuts:
        part = slice(start, start + cut)
        out, state = run([x[:, part], dt[:, part], a, b[:, part], c[:, part], state])
        outs.append(out)
        start += cut

    whole = run(inputs)
    assert distance((np.concatenate(outs, axis=1), state), whole) < 1e-6
    assert distance(whole, mamba2_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("log_g", [0.0, -1e-9, -1e-4, -20.0, -1e5])
def test_inputs_repeat_and_decays_are_extreme(log_g: float) -> None:
    """PK-1, FA-7: a decay of one keeps everything, one of zero nothing, and no NaN."""
    inputs = make_inputs(70)
    inputs[3][:] = inputs[3][:, :1]
    inputs[1][:], inputs[2][:] = 0.5, 2 * log_g

    assert distance(run(inputs), mamba2_by_token(inputs)) < 2e-6


def test_a_time_step_of_zero_changes_nothing() -> None:
    """PK-1, FA-7: such a token reads the state and leaves it as it was."""
    inputs = make_inputs(20)
    inputs[1][:] = 0.0
    out, state = run(inputs)

    assert np.array_equal(state, inputs[5])
    assert distance((out,), mamba2_by_token(inputs)[:1]) < 1e-6


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("length", [1, 11])
def test_steps_are_made_in_the_kernel(length: int, dtype: mx.Dtype) -> None:
    """PK-1, FA-7: softplus, limits and skip as defined, from parts of joined rows."""
    rng = np.random.default_rng(length)
    x, _, _, b, c, state = make_inputs(length, num_rows=2)
    log_a, dt_bias, skip = rng.normal(size=(3, 4)).astype(np.float32)
    dt = 4 * rng.normal(size=(2, length, 4))
    dt.flat[:4] = -30, -9, 0, 40
    other = np.full((2, length, 5), np.nan)
    rows = mx.array(np.concatenate([other, dt], axis=-1).astype(np.float32)).astype(dtype)
    mixed = np.concatenate([t.reshape(2, length, -1) for t in (x, b, c)], axis=-1)
    rates = Rates(mx.array(log_a), mx.array(dt_bias), mx.array(skip), (1e-6, 9.0))
    got = mamba2_mixed(mx.array(mixed), rows, 5, rates, mx.array(state), chunk=64)

    dt = np.array(rows.astype(mx.float32), np.float64)[..., 5:]
    dt = np.clip(np.logaddexp(dt + dt_bias, 0), 1e-6, 9.0)
    out, after = mamba2_by_token([x, dt, -np.exp(log_a.astype(np.float64)), b, c, state])
    assert distance([np.array(t) for t in got], (out + skip[:, None] * x, after)) < 2e-6


def test_states_that_no_kernel_takes() -> None:
    """PK-1: widths that do not fill lanes are left to MLX operations."""
    inputs = make_inputs(3, dims=(8, 16))
    before = dispatch.counts().get("mamba2:ops", 0)

    assert distance(run(inputs), mamba2_by_token(inputs)) < 1e-6
    assert dispatch.counts()["mamba2:ops"] == before + 1


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_the_self_check_passes(dtype: mx.Dtype) -> None:
    """PK-1: kernel and reference agree within what a back end is held to."""
    _check_plain((dtype, mx.float32, dtype), (24, 32))
    _check_mixed((mx.float32, dtype, mx.float32), (24, 32))
