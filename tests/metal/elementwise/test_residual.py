from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from neve.layers.norms import ResidualNorm, RMSNorm, UnweightedRMSNorm, ZeroCentredRMSNorm
from neve.metal.elementwise import residual
from neve.metal.elementwise.residual import add_rms_norm, add_rms_norm_reference
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator
from neve.testing.kernels.emulator import HostBackend

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no g++ builds kernels here"),
]

TOLERANCE = {mx.float32: 1e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def _host() -> Iterator[None]:
    with launch.using(HostBackend()):
        yield


def draw(seed: int, *shape: int, dtype: mx.Dtype = mx.float32, size: float = 1.0) -> mx.array:
    return (size * mx.random.normal(shape, key=mx.random.key(seed))).astype(dtype)


def make_norm(kind: type, dims: int, dtype: mx.Dtype, eps: float = 1e-5) -> ResidualNorm:
    norm = kind(dims, eps=eps)
    norm.weight = draw(9, dims, dtype=dtype)
    return norm


def assert_close(got: mx.array, want: mx.array) -> None:
    a, b = (np.array(x.astype(mx.float32)) for x in (got, want))

    np.testing.assert_allclose(a, b, atol=TOLERANCE[want.dtype] * np.abs(b).max())


@pytest.mark.parametrize(
    ("width", "dtype", "kind"),
    [
        (8, mx.float32, RMSNorm),
        (264, mx.float16, RMSNorm),
        (1024, mx.bfloat16, ZeroCentredRMSNorm),
        (16384, mx.bfloat16, RMSNorm),
    ],
)
@pytest.mark.parametrize("size", [1.0, 1000.0])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_a_sum_and_its_norm(
    width: int, dtype: mx.Dtype, kind: type, size: float, num_tokens: int
) -> None:
    """PK-1: one launch gives the stream, to the bit, and its norm."""
    x, delta = (draw(i, num_tokens, width, dtype=dtype, size=size) for i in (1, 2))
    norm = make_norm(kind, width, dtype)

    total, out = add_rms_norm(x, delta, norm)
    want, normed = add_rms_norm_reference(x, delta, norm)
    assert mx.array_equal(total, want)
    assert_close(out, normed)


@pytest.mark.parametrize(
    ("width", "dtype", "kind"),
    [
        (40, mx.float32, RMSNorm),
        (520, mx.bfloat16, ZeroCentredRMSNorm),
        (4104, mx.float16, RMSNorm),
        (12288, mx.bfloat16, RMSNorm),
    ],
)
def test_a_delta_is_normed_before_it_is_added(width: int, dtype: mx.Dtype, kind: type) -> None:
    """PK-1: each norm has its own weight and its own eps."""
    x, delta = draw(1, 3, width, dtype=dtype), draw(2, 3, width, dtype=dtype, size=0.1)
    norm, after = make_norm(kind, width, dtype, 1.0), make_norm(kind, width, dtype, 1e-3)
    after.weight = draw(4, width, dtype=dtype)

    total, out = add_rms_norm(x, delta, norm, after)
    want, normed = add_rms_norm_reference(x, delta, norm, after)
    assert_close(total, want)
    assert_close(out, normed)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_the_self_check_passes(dtype: mx.Dtype) -> None:
    """PK-1: what a GPU runs before the first use accepts the kernel."""
    x, norm = mx.zeros((1, 40), dtype), make_norm(RMSNorm, 40, dtype)

    residual._check(x, norm, None)
    residual._check(x, norm, norm)


def test_the_self_check_sees_a_weight_left_out() -> None:
    """PK-1: a body that forgets the weight fails it."""

    def rewrite(_: str, body: str) -> str:
        return body.replace("inverse * scale;\n    }\n    if", "inverse;\n    }\n    if")

    norm = make_norm(RMSNorm, 40, mx.float32)
    with (
        launch.using(HostBackend(rewrite=rewrite)),
        pytest.raises(dispatch.KernelMismatchError),
    ):
        residual._check(mx.zeros((1, 40)), norm, None)


def test_no_rows_are_no_launch() -> None:
    """PK-1: a step without logits ends in a norm of nothing."""
    none, norm = mx.zeros((0, 16)), make_norm(RMSNorm, 16, mx.float32)

    assert [y.shape for y in add_rms_norm(none, none, norm)] == [(0, 16), (0, 16)]


def test_the_reference_runs_where_the_kernel_cannot() -> None:
    """PK-1: odd widths, mixed dtypes and norms without weights are added in operations."""
    before = dispatch.counts().get("add_rms_norm:ops", 0)
    odd, even = draw(1, 2, 12), draw(2, 2, 16)
    add_rms_norm(odd, odd, make_norm(RMSNorm, 12, mx.float32))
    add_rms_norm(even, even.astype(mx.bfloat16), make_norm(RMSNorm, 16, mx.float32))
    add_rms_norm(even, even, make_norm(RMSNorm, 16, mx.bfloat16))
    add_rms_norm(even, even, make_norm(RMSNorm, 16, mx.float32), UnweightedRMSNorm(1e-5))

    assert dispatch.counts()["add_rms_norm:ops"] == before + 4
