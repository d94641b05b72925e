"""RMS norms with gates. The gates are columns of the rows of a projection."""

from __future__ import annotations

import functools
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from ..runtime import dispatch
from ..runtime.fusion import fused
from ..runtime.launch import Kernel, Launch, floats, ints
from .norms import is_few, normed, rms_norm

_KERNEL = Kernel("gated_norm", ("x", "rows", "weight", "ip", "fp"), ("out",))
_WIDEST = 16384


def gated_rms_norm(
    x: mx.array, rows: mx.array, weight: mx.array, *, eps: float, start: int = 0
) -> mx.array:
    """Return `x / rms(x) * weight * silu(gate)`: first the norm, then the gate.

    Args:
        x: `[T, H, D]`.
        rows: `[T, W]`; the gates are the columns from `start` on.
        weight: `[D]`.
        eps: Number that is added to the mean of the squares.
        start: First column of the gates.

    Returns:
        `[T, H * D]`, in the dtype of `x`.
    """
    if _takes_kernel(x, rows, weight, x.shape[2], start, after=True):
        return gated_rms_norm_kernel(x, rows, weight, eps=eps, start=start)
    return gated_rms_norm_reference(x, rows, weight, eps=eps, start=start)


def gated_group_norm(
    x: mx.array,
    rows: mx.array,
    weight: mx.array,
    num_groups: int,
    *,
    eps: float,
    start: int = 0,
) -> mx.array:
    """Return `y / rms(y) * weight` of each group of channels, with `y = x * silu(gate)`.

    All arithmetic is float32.

    Args:
        x: `[T, C]`.
        rows: `[T, W]`; the gates are the columns from `start` on.
        weight: `[C]`.
        num_groups: Groups of consecutive channels.
        eps: Number that is added to the mean of the squares.
        start: First column of the gates.

    Returns:
        `[T, C]`, in the dtype of `rows`.
    """
    if _takes_kernel(x, rows, weight, x.shape[1] // num_groups, start, after=False):
        return gated_group_norm_kernel(x, rows, weight, num_groups, eps=eps, start=start)
    return gated_group_norm_reference(x, rows, weight, num_groups, eps=eps, start=start)


def _takes_kernel(
    x: mx.array, rows: mx.array, weight: mx.array, width: int, start: int, *, after: bool
) -> bool:
    unsupported = None
    if width % 4 or rows.shape[1] % 4 or start % 4 or not 8 <= width <= _WIDEST:
        unsupported = f"{width} elements, gates from column {start}: not all multiples of 4"
    dtypes = (x.dtype, rows.dtype, weight.dtype)
    return dispatch.takes_kernel(
        "gated_rms_norm" if after else "gated_group_norm",
        (dtypes, width),
        functools.partial(_check_after if after else _check_before, dtypes, width),
        unsupported=unsupported,
    )


# -- kernel --------------------------------------------------------------------------------


def gated_rms_norm_kernel(
    x: mx.array, rows: mx.array, weight: mx.array, *, eps: float, start: int = 0
) -> mx.array:
    """Compute `gated_rms_norm` in one launch."""
    out = _launched(x, rows, weight, x.shape, x.dtype, (start, 0, eps), before=False)
    return out.flatten(1)


def gated_group_norm_kernel(
    x: mx.array,
    rows: mx.array,
    weight: mx.array,
    num_groups: int,
    *,
    eps: float,
    start: int = 0,
) -> mx.array:
    """Compute `gated_group_norm` in one launch."""
    width = x.shape[1] // num_groups
    shape = (x.shape[0], num_groups, width)
    out = _launched(x, rows, weight, shape, rows.dtype, (start, width, eps), before=True)
    return out.flatten(1)


def _launched(
    x: mx.array,
    rows: mx.array,
    weight: mx.array,
    shape: tuple[int, ...],
    dtype: mx.Dtype,
    numbers: tuple[int, int, float],
    *,
    before: bool,
) -> mx.array:
    """Launch the kernel.

    Args:
        x: Input of the norm.
        rows: Rows that hold the gates.
        weight: Weight of one group, or of all groups.
        shape: Tokens, groups, and elements of a group.
        dtype: Dtype of the output.
        numbers: First column of the gates, distance between the weights of two groups, epsilon.
        before: Whether gates are applied before norms.
    """
    num_tokens, num_groups, width = shape
    start, stride, eps = numbers
    threads = 32 * (1 if width <= 256 else 4 if width <= 1024 else 8)
    launch = Launch(
        template={"D": width, "BEFORE": before},
        grid=(threads * num_tokens, num_groups, 1),
        threadgroup=(threads, 1, 1),
        outputs=[(shape, dtype)],
    )
    ip = ints(rows.shape[1], start, stride)
    return _KERNEL(x, rows, weight, ip, floats(eps), launch=launch)[0]


def _check_after(dtypes: tuple[mx.Dtype, ...], width: int, seed: int = 1) -> None:
    """Compare the kernel with its reference; gates follow norms."""
    x, rows, weight = _drawn(dtypes, width, seed)
    got = gated_rms_norm_kernel(x, rows, weight[0], eps=1e-5, start=4)
    want = gated_rms_norm_reference(x, rows, weight[0], eps=1e-5, start=4)
    dispatch.compare([got], [want])


def _check_before(dtypes: tuple[mx.Dtype, ...], width: int, seed: int = 1) -> None:
    """Compare the kernel with its reference; gates precede norms."""
    x, rows, weight = _drawn(dtypes, width, seed)
    args = (x.flatten(1), rows, weight.flatten(), 2)
    got = gated_group_norm_kernel(*args, eps=1e-5, start=4)
    dispatch.compare([got], [gated_group_norm_reference(*args, eps=1e-5, start=4)])


def _drawn(dtypes: tuple[mx.Dtype, ...], width: int, seed: int) -> list[mx.array]:
    """Return values, gates and weights of 3 tokens and 2 groups."""
    shapes = [(3, 2, width), (3, 2 * width + 8), (2, width)]
    keys = mx.random.split(mx.random.key(seed), 3)
    return [
        mx.random.normal(shape, key=key).astype(dtype)
        for shape, key, dtype in zip(shapes, keys, dtypes, strict=True)
    ]


# -- reference -----------------------------------------------------------------------------


def gated_rms_norm_reference(
    x: mx.array, rows: mx.array, weight: mx.array, *, eps: float, start: int = 0
) -> mx.array:
    """Compute `gated_rms_norm` in MLX operations."""
    gate = rows[:, start : start + x.shape[1] * x.shape[2]].reshape(x.shape)
    if is_few(x):
        out = _few_gated(x.shape[2], eps)(x, gate, weight)
    else:
        plain = mx.fast.rms_norm(x, weight, eps)
        out = (plain * nn.silu(gate.astype(mx.float32))).astype(x.dtype)
    return out.reshape(x.shape[0], -1)


def gated_group_norm_reference(
    x: mx.array,
    rows: mx.array,
    weight: mx.array,
    num_groups: int,
    *,
    eps: float,
    start: int = 0,
) -> mx.array:
    """Compute `gated_group_norm` in MLX operations."""
    gated = _gate(x, rows[:, start : start + x.shape[1]])
    out = rms_norm(gated.reshape(*x.shape[:-1], num_groups, -1), None, eps)
    return (out.reshape(x.shape) * weight.astype(mx.float32)).astype(rows.dtype)


@functools.cache
def _few_gated(dims: int, eps: float) -> Callable[[mx.array, mx.array, mx.array], mx.array]:
    def norm(x: mx.array, gate: mx.array, weight: mx.array) -> mx.array:
        gate = gate.astype(mx.float32)
        out = normed(x, dims, eps).astype(x.dtype) * weight
        return (out * (gate * mx.sigmoid(gate))).astype(x.dtype)

    return fused(norm)


@fused
def _gate(x: mx.array, gate: mx.array) -> mx.array:
    gate = gate.astype(mx.float32)
    return x.astype(mx.float32) * (gate * mx.sigmoid(gate))


def _probe_after(dtype: mx.Dtype, width: int, seed: int = 1) -> None:
    _check_after((dtype,) * 3, width, seed)


def _probe_before(dtype: mx.Dtype, width: int, seed: int = 1) -> None:
    _check_before((mx.float32, dtype, mx.float32), width, seed)


dispatch.register("gated_rms_norm", _probe_after, [(32,), (300,)])
dispatch.register("gated_group_norm", _probe_before, [(32,), (1100,)])
