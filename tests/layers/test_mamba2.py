"""Mamba-2, against a loop over tokens in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.layers.mamba2 import mamba2, time_step
from neve.testing.recurrences import distance, mamba2_by_token

pytestmark = pytest.mark.mlx

CHUNK = 128
LENGTHS = (1, 7, 127, 128, 129, 1000)

Inputs: TypeAlias = list[np.ndarray]


def make_inputs(
    length: int,
    *,
    num_rows: int = 1,
    heads: tuple[int, int] = (2, 4),
    dims: tuple[int, int] = (8, 16),
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


def apply(
    tokens: Sequence[mx.array], a: mx.array, state: mx.array, chunk: int = CHUNK
) -> tuple[mx.array, mx.array]:
    """Apply it to some tokens: their x, dt, b and c."""
    x, dt, b, c = tokens
    return mamba2(x, dt, a, b, c, state, chunk=chunk)


def run(inputs: Inputs, chunk: int = CHUNK) -> tuple[np.ndarray, np.ndarray]:
    """Apply it as the product does."""
    x, dt, a, b, c, state = map(mx.array, inputs)
    out, after = apply((x, dt, b, c), a, state, chunk)
    return np.array(out), np.array(after)


def run_in_cuts(inputs: Inputs, lengths: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Apply it to so many tokens at a time."""
    x, dt, a, b, c, state = map(mx.array, inputs)
    outs, start = [], 0
    for length in lengths:
        part = [t[:, start : start + length] for t in (x, dt, b, c)]
        out, state = apply(part, a, state)
        outs.append(out)
        start += length
    return np.array(mx.concatenate(outs, axis=1)), np.array(state)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("heads", [(2, 4), (3, 3), (1, 6)])
def test_chunks_are_the_recurrence(length: int, heads: tuple[int, int]) -> None:
    """FA-7: any number of tokens, from any state, `B` and `C` shared or not."""
    inputs = make_inputs(length, heads=heads)

    assert distance(run(inputs), mamba2_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("length", LENGTHS[:-1])
def test_steps_are_the_recurrence_and_equal_chunks(length: int) -> None:
    """FA-7: decoding continues what a prefill began."""
    inputs = make_inputs(length, num_rows=2)
    stepped = run_in_cuts(inputs, [1] * length)

    assert distance(stepped, mamba2_by_token(inputs)) < 1e-6
    assert distance(run(inputs), stepped) < 1e-6


@pytest.mark.parametrize("chunk", [1, 2, 64, 100, 256, 4096])
def test_the_chunk_changes_nothing(chunk: int) -> None:
    """FA-7: how many tokens are computed at once is a matter of speed."""
    inputs = make_inputs(300, num_rows=2)

    assert distance(run(inputs, chunk), mamba2_by_token(inputs)) < 1e-6


@given(
    lengths=st.lists(st.integers(1, 2 * CHUNK + 1), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_any_cuts_give_the_same(lengths: list[int], seed: int) -> None:
    """SC-1: the state carries over from slice to slice."""
    inputs = make_inputs(sum(lengths), seed=seed)

    assert distance(run_in_cuts(inputs, lengths), mamba2_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("length", LENGTHS)
def test_a_row_does_not_depend_on_the_others(length: int) -> None:
    """TG-3: each row of a batch equals its single run."""
    inputs = make_inputs(length, num_rows=3)
    out, state = run(inputs)

    for i in range(3):
        row = slice(i, i + 1)
        alone = run([t if t.ndim == 1 else t[row] for t in inputs])
        assert distance((out[row], state[row]), alone) < 1e-6


@pytest.mark.parametrize("length", [1, 7, 129, 1000])
@pytest.mark.parametrize(
    "log_g",
    [0.0, -1e-9, -1e-4, -20.0, -90.0, -1e5],
    ids=["never", "hardly", "slowly", "nearly", "underflowing", "wholly"],
)
def test_decays_may_be_extreme(length: int, log_g: float) -> None:
    """FA-7: a decay of one keeps everything, one of zero nothing, and neither yields NaN."""
    inputs = make_inputs(length)
    inputs[1][:], inputs[2][:] = 0.5, 2 * log_g

    assert distance(run(inputs), mamba2_by_token(inputs)) < 2e-6


@pytest.mark.parametrize("log_g", [-20.0, -1e5])
def test_a_strong_decay_blurs_no_weak_one_beside_it(log_g: float) -> None:
    """FA-7: differences of summed logarithms would lose the weak ones behind the strong."""
    inputs = make_inputs(300)
    inputs[2][:] = -1.0
    inputs[1][:, ::9] = -log_g

    assert distance(run(inputs), mamba2_by_token(inputs)) < 1e-6


def test_a_time_step_of_zero_changes_nothing() -> None:
    """FA-7: such a token reads the state and leaves it as it was."""
    inputs = make_inputs(200)
    inputs[1][:] = 0.0
    out, state = run(inputs)

    assert np.array_equal(state, inputs[5])
    assert distance((out,), mamba2_by_token(inputs)[:1]) < 1e-6


@pytest.mark.parametrize("length", [1, 200])
def test_it_is_float32(length: int) -> None:
    """FA-7: bfloat16 tokens are answered in float32, from a float32 state."""
    x, dt, a, b, c, state = map(mx.array, make_inputs(length))
    narrow = [t.astype(mx.bfloat16) for t in (x, dt, b, c)]
    out, after = apply(narrow, a, state)
    x, dt, b, c = (t.astype(mx.float32) for t in narrow)
    expected = mamba2_by_token([np.array(t) for t in (x, dt, a, b, c, state)])

    assert out.dtype == after.dtype == mx.float32
    assert distance((np.array(out), np.array(after)), expected) < 1e-6


def test_the_state_does_not_keep_the_tokens_alive() -> None:
    """KV-1: after a long slice only the state stays in memory."""
    inputs = list(map(mx.array, make_inputs(4096)))
    mx.eval(inputs)
    before = mx.get_active_memory()
    x, dt, a, b, c, start = inputs
    out, state = apply((x, dt, b, c), a, start)
    mx.eval(out, state)
    del out

    assert mx.get_active_memory() - before < 64 * 1024


@pytest.mark.parametrize("limit", [(0.0, float("inf")), (0.1, 0.7)])
def test_time_step(limit: tuple[float, float]) -> None:
    """FA-7: the softplus of projection and bias, within the limits and nothing else."""
    rng = np.random.default_rng(0)
    dt, bias = 3 * rng.normal(size=(1, 40, 4)) - 6, rng.normal(size=4)
    steps = time_step(mx.array(dt, mx.float32), mx.array(bias, mx.float32), limit)
    expected = np.clip(np.log1p(np.exp(dt + bias)), *limit)

    assert (expected < 0.001).any() == (limit[0] == 0.0)
    np.testing.assert_allclose(steps, expected, rtol=1e-5)


def test_time_steps_are_float32() -> None:
    """FA-7: a bfloat16 projection is widened before the bias is added."""
    dt, bias = mx.array([[-3.0]]).astype(mx.bfloat16), mx.array([0.001])

    steps = time_step(dt, bias, (0.0, 1.0))
    assert steps.dtype == mx.float32
    np.testing.assert_allclose(steps, np.log1p(np.exp([[-3.0 + 0.001]])), rtol=1e-6)
