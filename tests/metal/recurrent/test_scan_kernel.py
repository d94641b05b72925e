from __future__ import annotations

import logging

import mlx.core as mx
import pytest

from neve.metal.recurrent.scan_kernel import ScanKernel, compare, draw
from neve.metal.runtime import dispatch, launch
from neve.metal.runtime.dispatch import KernelMismatchError
from neve.metal.runtime.launch import Kernel
from neve.testing.kernels.recording import RecordingBackend

pytestmark = pytest.mark.mlx

KERNEL = ScanKernel(Kernel("mamba2", ("x", "a", "state", "ip", "fp"), ("out", "after")))


def no_check(dtypes: tuple[mx.Dtype, ...], dims: tuple[int, ...]) -> None:
    """Accept every kernel."""


@pytest.mark.parametrize(
    ("width", "dtype", "reason"),
    [
        (
            48,
            mx.float32,
            "state rows have 48 elements, the kernel takes (32, 64, 96, 128, 256)",
        ),
        (64, mx.float16, "the state is mlx.core.float16, the kernel takes float32"),
    ],
)
def test_a_state_that_no_kernel_takes(
    width: int, dtype: mx.Dtype, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """PK-1: the reference runs, and the warning names what the state has and what is taken."""
    dispatch._SAID.clear()
    state = mx.zeros((1, 2, 4, width), dtype)
    with launch.using(RecordingBackend()), caplog.at_level(logging.WARNING):
        assert not KERNEL.takes((mx.float32,), state, no_check)

    assert caplog.messages == [f"mamba2 runs as MLX operations: {reason}"]


def test_a_launch_says_where_each_input_lies() -> None:
    """PK-1: tokens, heads of a group, row lengths and first columns, in the order of `ip`."""
    recording = RecordingBackend()
    rows, state = mx.zeros((3, 7, 40)), mx.zeros((3, 6, 20, 32))
    with launch.using(recording):
        out, after = KERNEL.launch(
            [rows],
            [8],
            [mx.zeros(6)],
            state,
            groups=2,
            dtype=mx.float16,
            template={},
            numbers=(0.5,),
        )

    (recorded,) = recording.launches
    assert recorded.launch.grid == (2 * 128, 6, 3)
    assert (out.shape, out.dtype) == ((3, 7, 6, 20), mx.float16)
    assert (after.shape, after.dtype) == (state.shape, mx.float32)
    assert recorded.inputs[3] == ((4,), mx.int32)  # 7 tokens, 3 heads, 40 columns, from 8


def test_kernel_and_reference_get_the_same_arguments() -> None:
    """PK-1: a self-check covers decoding and slices, and a difference in either is an error."""
    lengths: list[int] = []

    def scan(x: mx.array) -> tuple[mx.array, mx.array]:
        lengths.append(x.shape[0])
        return x, x + 1

    def wrong(x: mx.array) -> tuple[mx.array, mx.array]:
        return x, x + (1 if x.shape[0] == 1 else 2)

    compare(scan, scan, lambda length: tuple(draw(1, [(length, 3)])))
    assert lengths == [1, 1, 11, 11]
    with pytest.raises(KernelMismatchError, match="output 3 differs"):
        compare(scan, wrong, lambda length: tuple(draw(1, [(length, 3)])))
