from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.layers.gated_delta import CHUNK, gated_delta, unit_lower_inverse
from neve.testing.recurrences import distance, gated_delta_by_token

pytestmark = pytest.mark.mlx

LENGTHS = (1, 7, 63, 64, 65, 1000)

Inputs: TypeAlias = list[np.ndarray]


def make_inputs(
    length: int,
    *,
    num_rows: int = 1,
    heads: tuple[int, int] = (2, 4),
    dims: tuple[int, int] = (16, 8),
    seed: int = 0,
) -> Inputs:
    """Return q, k, v, log_g, beta and a state of `heads` (Hk, Hv) and `dims` (Dk, Dv)."""
    rng = np.random.default_rng(seed)
    (hk, hv), (dk, dv) = heads, dims

    def normed() -> np.ndarray:
        x = rng.normal(size=(num_rows, length, hk, dk))
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    values = rng.normal(size=(num_rows, length, hv, dv))
    log_g = -np.exp(rng.normal(size=(num_rows, length, hv)) - 2)
    beta = rng.random((num_rows, length, hv))
    state = rng.normal(size=(num_rows, hv, dv, dk))
    drawn = [normed() * dk**-0.5, normed(), values, log_g, beta, state]
    return [x.astype(np.float32) for x in drawn]


def run(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Apply it as the product does."""
    out, state = gated_delta(*map(mx.array, inputs))
    return np.array(out), np.array(state)


def apply(tokens: Sequence[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """Apply it to some tokens."""
    q, k, v, log_g, beta = tokens
    return gated_delta(q, k, v, log_g, beta, state)


def run_by_steps(inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Apply it as the product does, one token a call."""
    *tokens, start = map(mx.array, inputs)
    state, outs = start, []
    for t in range(tokens[0].shape[1]):
        out, state = apply([x[:, t : t + 1] for x in tokens], state)
        outs.append(out)
    return np.array(mx.concatenate(outs, axis=1)), np.array(state)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("heads", [(2, 4), (3, 3), (1, 6)])
def test_chunks_are_the_recurrence(length: int, heads: tuple[int, int]) -> None:
    """FA-2: any number of tokens, from any state, key heads shared or not."""
    inputs = make_inputs(length, heads=heads)

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("length", LENGTHS[:-1])
def test_steps_are_the_recurrence_and_equal_chunks(length: int) -> None:
    """FA-2: decoding continues what a prefill began."""
    inputs = make_inputs(length, num_rows=2)

    stepped = run_by_steps(inputs)
    assert distance(stepped, gated_delta_by_token(inputs)) < 1e-6
    assert distance(run(inputs), stepped) < 1e-6


@given(
    lengths=st.lists(st.integers(1, 2 * CHUNK + 1), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_any_cuts_give_the_same(lengths: list[int], seed: int) -> None:
    """SC-1: the state carries over from slice to slice."""
    inputs = make_inputs(sum(lengths), seed=seed)
    *tokens, state = map(mx.array, inputs)
    outs, start = [], 0
    for length in lengths:
        out, state = apply([x[:, start : start + length] for x in tokens], state)
        outs.append(out)
        start += length

    sliced = np.array(mx.concatenate(outs, axis=1)), np.array(state)
    assert distance(sliced, gated_delta_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("length", LENGTHS)
def test_a_row_does_not_depend_on_the_others(length: int) -> None:
    """TG-3: each row of a batch equals its single run."""
    inputs = make_inputs(length, num_rows=3)
    out, state = run(inputs)

    for row in range(3):
        alone = run([x[row : row + 1] for x in inputs])
        assert distance((out[row : row + 1], state[row : row + 1]), alone) < 1e-6


@pytest.mark.parametrize("length", [7, 65, 1000])
@pytest.mark.parametrize(
    "log_g",
    [0.0, -1e-9, -1e-4, -20.0, -90.0, -1e5],
    ids=["never", "hardly", "slowly", "nearly", "underflowing", "wholly"],
)
def test_decays_may_be_extreme(length: int, log_g: float) -> None:
    """FA-2: a decay of one keeps everything, one of zero nothing, and neither yields NaN."""
    inputs = make_inputs(length)
    inputs[3][:] = log_g

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 2e-6


@pytest.mark.parametrize("log_g", [-20.0, -1e5])
def test_a_strong_decay_blurs_no_weak_one_beside_it(log_g: float) -> None:
    """FA-2: differences of summed logarithms would lose the weak ones behind the strong."""
    inputs = make_inputs(200)
    inputs[3][:, ::9] = log_g

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 1e-6


@pytest.mark.parametrize("beta", [0.5, 0.99, 1.0])
@pytest.mark.parametrize("log_g", [0.0, -0.01])
def test_keys_may_be_equal(beta: float, log_g: float) -> None:
    """FA-2: a text that repeats itself is no harder than another.

    Powers of the chunk's matrix would grow to 1e18 here before they cancel.
    """
    inputs = make_inputs(300)
    inputs[1][:] = inputs[1][:, :1]
    inputs[3][:], inputs[4][:] = log_g, beta

    assert distance(run(inputs), gated_delta_by_token(inputs)) < 2e-6


def test_a_rate_of_zero_leaves_the_state_to_fade() -> None:
    """FA-2: what padding relies on."""
    inputs = make_inputs(65)
    inputs[4][:] = 0.0
    _, state = run(inputs)

    faded = inputs[5] * np.exp(inputs[3].astype(np.float64).sum(axis=1))[..., None, None]
    np.testing.assert_allclose(state, faded, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 65])
def test_the_state_stays_float32(length: int) -> None:
    """FA-2: bfloat16 tokens are answered in bfloat16 from a float32 state."""
    *tokens, state = map(mx.array, make_inputs(length))
    narrow = [x.astype(mx.bfloat16) for x in tokens]
    out, after = apply(narrow, state)

    widened = [np.array(x.astype(mx.float32)) for x in narrow]
    expected = gated_delta_by_token([*widened, np.array(state)])
    assert (out.dtype, after.dtype) == (mx.bfloat16, mx.float32)
    assert distance((np.array(after),), expected[1:]) < 1e-6


@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_the_inverse_is_one(size: int) -> None:
    """FA-2: of a unit lower triangular matrix, whatever lies above its diagonal."""
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, size=(3, 2, size, size)) * 4 / size
    inverse = np.array(unit_lower_inverse(mx.array(a, mx.float32)))

    expected = np.linalg.inv(np.eye(size) + np.tril(a, -1))
    np.testing.assert_allclose(inverse, expected, atol=1e-5)
