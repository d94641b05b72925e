"""Short convolutions, against a loop over tokens in float64."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.layers.short_conv import ShortConv, taps

pytestmark = pytest.mark.mlx

CHANNELS = 6


def convolution(length: int, *, bias: bool = False) -> ShortConv:
    conv = ShortConv(CHANNELS, length, bias=bias)
    mx.random.seed(length)
    conv.weight = mx.random.normal(conv.weight.shape)
    if bias:
        conv.bias = mx.random.normal(conv.bias.shape)
    return conv


def tokens(num_rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(length).normal(size=(num_rows, length, CHANNELS))


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32), np.float64)


def naive(conv: ShortConv, x: np.ndarray) -> np.ndarray:
    """Return the output for whole sequences `[N, L, C]`, one token after the other."""
    weight = float64(conv.weight)
    out = np.zeros_like(x)
    for t in range(x.shape[1]):
        for i, row in enumerate(weight):
            source = t - len(weight) + 1 + i
            if source >= 0:
                out[:, t] += row * x[:, source]
    return out + (float64(conv.bias) if "bias" in conv else 0)


def zeros(conv: ShortConv, num_rows: int) -> mx.array:
    return mx.zeros((num_rows, conv.weight.shape[0] - 1, CHANNELS))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("length", [2, 3, 4])
@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 64])
def test_the_convolution_is_its_formula(length: int, num_tokens: int, bias: bool):
    """FW-2: a depthwise causal convolution, with zeros before the first token."""
    conv, x = convolution(length, bias=bias), tokens(3, num_tokens)
    out, state = conv(mx.array(x, mx.float32), zeros(conv, 3))
    padded = np.pad(x, ((0, 0), (length - 1, 0), (0, 0)))

    np.testing.assert_allclose(out, naive(conv, x), atol=1e-5)
    np.testing.assert_allclose(state, padded[:, num_tokens:], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8), length=st.integers(2, 4))
def test_any_cut_gives_the_same(cuts: list[int], length: int):
    """GR-5: a sequence in slices, shorter than the kernel or longer, is one convolution."""
    conv, x = convolution(length), tokens(2, sum(cuts))
    state, parts, start = zeros(conv, 2), [], 0
    for cut in cuts:
        part, state = conv(mx.array(x[:, start : start + cut], mx.float32), state)
        parts.append(part)
        start += cut

    np.testing.assert_allclose(mx.concatenate(parts, axis=1), naive(conv, x), atol=1e-5)


def test_a_row_does_not_depend_on_the_others():
    """TG-3: a stacked row is bit for bit what it is alone."""
    conv, x = convolution(3), mx.array(tokens(4, 1), mx.float32)
    state = mx.array(tokens(4, 2), mx.float32)
    together, after = conv(x, state)

    for row in range(4):
        part = slice(row, row + 1)
        alone, after_alone = conv(x[part], state[part])
        assert mx.array_equal(alone, together[part])
        assert mx.array_equal(after_alone, after[part])


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_dtype(num_tokens: int):
    """FA: sums are made in float32, output and state keep the dtype of the inputs."""
    conv, x = convolution(3, bias=True), mx.array(tokens(1, num_tokens)).astype(mx.bfloat16)
    conv.set_dtype(mx.bfloat16)
    out, state = conv(x, zeros(conv, 1).astype(mx.bfloat16))
    expected = naive(conv, float64(x))

    assert out.dtype == state.dtype == mx.bfloat16
    np.testing.assert_allclose(out.astype(mx.float32), expected, rtol=2**-8, atol=2**-20)


def test_the_state_does_not_keep_the_tokens_alive():
    """KV-1: after a long slice only the rows of the state stay in memory."""
    conv = ShortConv(256, 3)
    before = mx.get_active_memory()
    state = conv(mx.zeros((1, 4096, 256)), mx.zeros((1, 2, 256)))[1]
    mx.eval(state)

    assert mx.get_active_memory() - before < 64 * 1024


def test_taps():
    """FA-5: both layouts in which a kernel is published give the same taps."""
    kernel = mx.random.normal((CHANNELS, 1, 4))

    assert mx.array_equal(taps(kernel), kernel[:, 0].T)
    assert mx.array_equal(taps(kernel.swapaxes(1, 2)), kernel[:, 0].T)


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_an_activation_is_applied_to_the_sums(num_tokens: int):
    """FW-2: a token alone and a slice are activated alike, behind the bias."""
    plain, x = convolution(4, bias=True), mx.array(tokens(2, num_tokens), mx.float32)
    active = ShortConv(CHANNELS, 4, bias=True, activation=nn.silu)
    active.update(plain.parameters())
    expected, _ = plain(x, zeros(plain, 2))

    np.testing.assert_allclose(active(x, zeros(plain, 2))[0], nn.silu(expected), atol=1e-6)


def test_a_weight_that_is_replaced_is_used():
    """FW-2: what is kept of a weight between two tokens is that weight's."""
    conv, x = convolution(3), mx.array(tokens(2, 1), mx.float32)
    before, _ = conv(x, zeros(conv, 2))
    conv.weight = 2 * conv.weight

    np.testing.assert_allclose(conv(x, zeros(conv, 2))[0], 2 * before, rtol=1e-6)
