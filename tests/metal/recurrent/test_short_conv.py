"""The short convolution's kernel, run on the host, against a loop over tokens in float64."""

from __future__ import annotations

from collections.abc import Generator

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.metal.recurrent.short_conv import Taps, _check, gated_short_conv, short_conv
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no C++ compiler builds bodies"),
]

ROUNDING = {mx.float32: 2**-22, mx.float16: 2**-11, mx.bfloat16: 2**-8}


@pytest.fixture(autouse=True)
def host() -> Generator[None]:
    """Run kernels on the host, checked."""
    with launch.using(HostBackend()):
        yield


def drawn(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    x = np.random.default_rng([seed, *shape]).normal(size=shape)
    return mx.array(x.astype(np.float32)).astype(dtype)


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32), np.float64)


def naive(x: np.ndarray, state: np.ndarray, taps: Taps) -> tuple[np.ndarray, np.ndarray]:
    """Return output and state after `x [N, L, C]`, one token after the other."""
    weight = float64(taps.weight)
    window = np.concatenate([state, x], axis=1)
    out = np.zeros_like(x)
    for t in range(x.shape[1]):
        out[:, t] = (window[:, t : t + len(weight)] * weight).sum(axis=1)
    if taps.bias is not None:
        out += float64(taps.bias)
    if taps.activation is not None:
        out = out / (1 + np.exp(-out))
    return out, window[:, x.shape[1] :]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 31, 70])
def test_the_kernel_is_its_formula(num_tokens: int, num_rows: int, dtype: mx.Dtype) -> None:
    """PK-1, FW-2: any number of tokens, from columns of wider rows; counted as a kernel."""
    taps = Taps(drawn(4, 40, dtype=dtype), drawn(40, dtype=dtype), nn.silu)
    state = drawn(num_rows, 3, 40, dtype=dtype)
    x = drawn(num_rows, num_tokens, 60, dtype=dtype)
    before = dispatch.counts().get("short_conv:host", 0)
    out, after = short_conv(x, state, taps, start=12)
    expected, kept = naive(float64(x[..., 12:52]), float64(state), taps)

    assert out.dtype == after.dtype == dtype
    np.testing.assert_allclose(float64(out), expected, rtol=ROUNDING[dtype], atol=2e-6)
    assert np.array_equal(float64(after), kept)
    assert dispatch.counts()["short_conv:host"] == before + 1


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("num_tokens", [1, 2, 9])
def test_gates(num_tokens: int, dtype: mx.Dtype) -> None:
    """PK-1, FA-5: `c * conv(b * x)`, and the state is what was convolved, as it is kept."""
    taps = Taps(drawn(3, 24, dtype=dtype))
    state, joined = drawn(2, 2, 24, dtype=dtype), drawn(2, num_tokens, 72, dtype=dtype)
    out, after = gated_short_conv(joined, state, taps)

    b, c, x = mx.split(joined, 3, axis=-1)
    expected, kept = naive(float64(b * x), float64(state), taps)
    expected = expected * float64(c)
    np.testing.assert_allclose(float64(out), expected, rtol=ROUNDING[dtype], atol=2e-6)
    assert np.array_equal(float64(after), kept)


def test_a_wide_state_answers_in_its_dtype() -> None:
    """PK-1: bfloat16 tokens before a float32 state are not rounded on their way."""
    taps = Taps(drawn(4, 16), drawn(16))
    x, state = drawn(1, 6, 16, dtype=mx.bfloat16), drawn(1, 3, 16)
    out, after = short_conv(x, state, taps)
    expected, kept = naive(float64(x), float64(state), taps)

    assert out.dtype == after.dtype == mx.float32
    np.testing.assert_allclose(out, expected, atol=2e-6)
    assert np.array_equal(float64(after), kept)


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_any_cut_gives_the_same_bits(cuts: list[int]) -> None:
    """PK-1, GR-5: a sequence in slices, shorter than the taps or longer, is one convolution."""
    taps = Taps(drawn(4, 40), drawn(40), nn.silu)
    x, state = drawn(2, sum(cuts), 40), drawn(2, 3, 40)
    with launch.using(HostBackend(orders=(0,))):
        whole, last = short_conv(x, state, taps)
        parts, start = [], 0
        for cut in cuts:
            part, state = short_conv(x[:, start : start + cut], state, taps)
            parts.append(part)
            start += cut

    assert mx.array_equal(mx.concatenate(parts, axis=1), whole)
    assert mx.array_equal(state, last)


@pytest.mark.parametrize("channels", [6, 4])
def test_channels_that_no_kernel_takes(channels: int) -> None:
    """PK-1: channels that are not all fours are left to MLX operations."""
    taps = Taps(drawn(3, channels))
    x, state = drawn(1, 5, channels), drawn(1, 2, channels)
    before = dispatch.counts().get("short_conv:ops", 0)
    out, _ = short_conv(x, state, taps)

    np.testing.assert_allclose(out, naive(float64(x), float64(state), taps)[0], atol=2e-6)
    assert dispatch.counts()["short_conv:ops"] == before + 1


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("gated", [False, True])
def test_the_self_check_passes(dtype: mx.Dtype, gated: bool) -> None:
    """PK-1: kernel and reference agree within what a back end is held to."""
    _check((dtype,) * 3, 3 if gated else 4, not gated, not gated, gated)
