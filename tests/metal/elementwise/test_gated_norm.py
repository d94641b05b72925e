"""The gated norms' kernel, run on the host, against their formulas in float64."""

from __future__ import annotations

from collections.abc import Generator

import mlx.core as mx
import numpy as np
import pytest

from neve.metal.elementwise.gated_norm import (
    _check_after,
    _check_before,
    gated_group_norm,
    gated_rms_norm,
)
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no C++ compiler builds bodies"),
]

ROUNDING = {mx.float32: 2**-20, mx.float16: 2**-11, mx.bfloat16: 2**-8}
EPS = 1e-3


@pytest.fixture(autouse=True)
def host() -> Generator[None]:
    """Run kernels on the host, checked."""
    with launch.using(HostBackend()):
        yield


def drawn(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    x = np.random.default_rng(shape).normal(size=shape) * 3
    return mx.array(x.astype(np.float32)).astype(dtype)


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32), np.float64)


def normed(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (12, mx.float32),
        (128, mx.bfloat16),
        (128, mx.float16),
        (300, mx.float32),
        (1100, mx.float32),
    ],
)
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_gates_come_last(num_tokens: int, width: int, dtype: mx.Dtype) -> None:
    """PK-1, FA-2: heads of any width, gates in wider rows, rounded once."""
    x, weight = drawn(num_tokens, 3, width, dtype=dtype), drawn(width, dtype=dtype)
    rows = drawn(num_tokens, 3 * width + 12, dtype=dtype)
    before = dispatch.counts().get("gated_rms_norm:host", 0)
    out = gated_rms_norm(x, rows, weight, eps=EPS, start=8)

    gate = float64(rows[:, 8:-4]).reshape(x.shape)
    expected = (normed(float64(x)) * float64(weight) * silu(gate)).reshape(num_tokens, -1)
    assert out.dtype == dtype
    np.testing.assert_allclose(float64(out), expected, rtol=ROUNDING[dtype], atol=1e-6)
    assert dispatch.counts()["gated_rms_norm:host"] == before + 1


@pytest.mark.parametrize("num_groups", [1, 3])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_gates_come_first(dtype: mx.Dtype, num_groups: int) -> None:
    """PK-1, FA-7: each group is normed behind its gates, and has weights of its own."""
    x, rows, weight = drawn(5, 120), drawn(5, 140, dtype=dtype), drawn(120)
    out = gated_group_norm(x, rows, weight, num_groups, eps=EPS, start=4)

    y = float64(x) * silu(float64(rows[:, 4:124]))
    expected = normed(y.reshape(5, num_groups, -1)).reshape(5, 120) * float64(weight)
    assert out.dtype == dtype
    np.testing.assert_allclose(float64(out), expected, rtol=ROUNDING[dtype], atol=1e-6)


def test_gates_may_be_extreme() -> None:
    """PK-1: gates of a thousand open or shut, and overflow nothing."""
    x, weight = drawn(2, 1, 12), mx.ones(12)
    rows = mx.array([1000.0, -1000.0] * 12).reshape(2, 12)
    out = gated_rms_norm(x, rows, weight, eps=EPS)

    expected = (normed(float64(x)) * np.maximum(float64(rows), 0)[:, None]).reshape(2, 12)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_widths_that_no_kernel_takes() -> None:
    """PK-1: groups that are not all fours are left to MLX operations."""
    before = dispatch.counts().get("gated_group_norm:ops", 0)
    gated_group_norm(drawn(2, 20), drawn(2, 20), drawn(20), 2, eps=EPS)

    assert dispatch.counts()["gated_group_norm:ops"] == before + 1


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_the_self_check_passes(dtype: mx.Dtype) -> None:
    """PK-1: kernel and reference agree within what a back end is held to."""
    _check_after((dtype,) * 3, 32)
    _check_before((mx.float32, dtype, mx.float32), 32)
