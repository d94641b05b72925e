"""Depthwise causal convolutions over a few tokens, with a state between steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..runtime import device, dispatch
from ..runtime.fusion import fused
from ..runtime.launch import Kernel, Launch, ints

Activation: TypeAlias = Callable[[mx.array], mx.array]

_KERNEL = Kernel("short_conv", ("x", "state", "weight", "bias", "ip"), ("out", "after"))
_TOKENS = 4
_LONGEST = 8


@attrs.frozen(eq=False, slots=False)
class Taps:
    """Parameters of a convolution.

    Attributes:
        weight: `[K, C]`; the first row belongs to the oldest token.
        bias: `[C]`; None for none.
        activation: Function that is applied to the sums; None for none.
    """

    weight: mx.array
    bias: mx.array | None = None
    activation: Activation | None = None

    @functools.cached_property
    def rows(self) -> Sequence[mx.array]:
        """The rows `[C]` of the weight."""
        rows = [row[0] for row in mx.split(self.weight, self.weight.shape[0])]
        mx.eval(rows)
        return rows


def short_conv(
    x: mx.array, state: mx.array, taps: Taps, *, start: int = 0
) -> tuple[mx.array, mx.array]:
    """Convolve `L` tokens of `N` sequences.

    `out[t] = activation(bias + sum_i weight[i] * x[t - K + 1 + i])` for each channel.
    Arithmetic is float32; the result is rounded once.

    Args:
        x: `[N, L, W]`; the columns `start … start + C` are convolved.
        state: Inputs of the K - 1 tokens before `x`, `[N, K - 1, C]`.
        taps: The convolution.
        start: First column.

    Returns:
        The output `[N, L, C]` and the state after the tokens, both in the dtype of `state`.
    """
    if _takes_kernel(x, state, taps, start, gated=False):
        return short_conv_kernel(x, state, taps, start=start)
    return short_conv_reference(x, state, taps, start=start)


def gated_short_conv(
    joined: mx.array, state: mx.array, taps: Taps
) -> tuple[mx.array, mx.array]:
    """Convolve `L` tokens of `N` sequences between two gates: `c * conv(b * x)`.

    Args:
        joined: `b`, `c` and `x` side by side, `[N, L, 3 * C]`.
        state: `b * x` of the K - 1 tokens before, `[N, K - 1, C]`.
        taps: The convolution.

    Returns:
        The output `[N, L, C]` and the state after the tokens, both in the dtype of `state`.
    """
    if _takes_kernel(joined, state, taps, 0, gated=True):
        return short_conv_kernel(joined, state, taps, gated=True)
    return gated_short_conv_reference(joined, state, taps)


def _takes_kernel(x: mx.array, state: mx.array, taps: Taps, start: int, *, gated: bool) -> bool:
    length, channels = taps.weight.shape
    unsupported = None
    if channels % 4 or channels < 8 or start % 4 or x.shape[2] % 4:
        unsupported = f"{channels} channels from {start} of {x.shape[2]}: not multiples of 4"
    elif not 2 <= length <= _LONGEST:
        unsupported = f"{length} taps are not 2 to {_LONGEST}"
    elif taps.activation not in (None, nn.silu):
        unsupported = "the activation is not SiLU"
    dtypes = (x.dtype, state.dtype, taps.weight.dtype)
    how = (length, taps.bias is not None, taps.activation is not None, gated)
    return dispatch.takes_kernel(
        "short_conv",
        (dtypes, how),
        functools.partial(_check, dtypes, *how),
        unsupported=unsupported,
    )


def short_conv_kernel(
    x: mx.array, state: mx.array, taps: Taps, *, start: int = 0, gated: bool = False
) -> tuple[mx.array, mx.array]:
    """Compute `short_conv` or `gated_short_conv` in one launch."""
    (num_rows, num_tokens, width), (length, channels) = x.shape, taps.weight.shape
    threads = channels // 4
    launch = Launch(
        template={
            "T": state.dtype,
            "K": length,
            "SILU": taps.activation is not None,
            "BIAS": taps.bias is not None,
            "GATED": gated,
        },
        grid=(threads, -(-num_tokens // _TOKENS), num_rows),
        threadgroup=(min(128, -(-threads // 32) * 32), 1, 1),
        outputs=[((num_rows, num_tokens, channels), state.dtype), (state.shape, state.dtype)],
    )
    bias = taps.weight if taps.bias is None else taps.bias
    ip = ints(num_tokens, channels, width, start)
    out, after = _KERNEL(x, state, taps.weight, bias, ip, launch=launch)
    return out, after


def _check(
    dtypes: tuple[mx.Dtype, ...],
    length: int,
    biased: bool,
    active: bool,
    gated: bool,
    seed: int = 1,
) -> None:
    """Compare the kernel with its references, on one token and on several tiles of tokens."""
    channels = 520  # several threadgroups, the last one not full
    keys = mx.random.split(mx.random.key(seed), 4)
    weight = mx.random.normal((length, channels), key=keys[0]).astype(dtypes[2])
    bias = mx.random.normal((channels,), key=keys[1]).astype(dtypes[2])
    taps = Taps(weight, bias if biased else None, nn.silu if active else None)
    reference = gated_short_conv_reference if gated else short_conv_reference
    got: list[mx.array] = []
    want: list[mx.array] = []
    for num_tokens in (1, 10):
        x = mx.random.normal((2, num_tokens, channels * (3 if gated else 1)), key=keys[2])
        state = mx.random.normal((2, length - 1, channels), key=keys[3]).astype(dtypes[1])
        x = x.astype(dtypes[0])
        got += short_conv_kernel(x, state, taps, gated=gated)
        want += reference(x, state, taps)
    dispatch.compare(got, want)


def _probe(dtype: mx.Dtype, kind: str, seed: int = 1) -> None:
    plain = kind == "plain"
    _check((dtype,) * 3, 4 if plain else 3, plain, plain, not plain, seed)


# -- reference -----------------------------------------------------------------------------


def gated_short_conv_reference(
    joined: mx.array, state: mx.array, taps: Taps
) -> tuple[mx.array, mx.array]:
    """Compute `gated_short_conv` in MLX operations."""
    b, c, x = mx.split(joined, 3, axis=-1)
    out, state = short_conv_reference(b * x, state, taps)
    return c * out, state


def short_conv_reference(
    x: mx.array, state: mx.array, taps: Taps, *, start: int = 0
) -> tuple[mx.array, mx.array]:
    """Compute `short_conv` in MLX operations."""
    channels = taps.weight.shape[1]
    if x.shape[2] > channels:
        x = x[..., start : start + channels]
    x = x.astype(state.dtype)
    if x.shape[1] == 1:
        return _step(x, state, taps)
    window = mx.concatenate([state, x], axis=1)
    out = _sums(window, x.shape[1], taps.weight)
    if taps.bias is not None:
        out = out + taps.bias
    if taps.activation is not None:
        out = taps.activation(out)
    # a copy: a slice would keep the window alive until the next step
    return out.astype(x.dtype), mx.contiguous(window[:, x.shape[1] :])


def _step(x: mx.array, state: mx.array, taps: Taps) -> tuple[mx.array, mx.array]:
    """Convolve one token."""
    inputs = [*mx.split(state, state.shape[1], axis=1), x]
    out = _weighted(taps.activation)(inputs, taps.rows, taps.bias)
    return out, mx.concatenate(inputs[1:], axis=1)


def _sums(window: mx.array, length: int, weight: mx.array) -> mx.array:
    weight = weight.astype(mx.float32)
    if device.is_gpu():
        kernel = weight.T[:, :, None]
        return mx.conv1d(window.astype(mx.float32), kernel, groups=kernel.shape[0])
    # on a CPU, MLX's convolution takes four times as long as a sum of shifted inputs
    terms = [window[:, i : i + length] * row for i, row in enumerate(weight)]
    return sum(terms[1:], terms[0])


@functools.cache
def _weighted(activation: Activation | None) -> Callable[..., mx.array]:
    """Return a function that computes the activated sum of weighted inputs."""

    def weighted(
        inputs: Sequence[mx.array], rows: Sequence[mx.array], bias: mx.array | None
    ) -> mx.array:
        pairs = zip(inputs, rows, strict=True)
        terms = [x.astype(mx.float32) * row.astype(mx.float32) for x, row in pairs]
        out = sum(terms[1:], terms[0])
        if bias is not None:
            out = out + bias
        if activation is not None:
            out = activation(out)
        return out.astype(inputs[-1].dtype)

    return fused(weighted)


dispatch.register("short_conv", _probe, [("plain",), ("gated",)])
