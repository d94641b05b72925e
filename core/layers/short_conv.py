"""Depthwise causal convolution over a few tokens, one step after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import mlx.core as mx
import mlx.nn as nn

from ..metal import device
from ..metal.fusion import fused

Activation: TypeAlias = Callable[[mx.array], mx.array]


def taps(kernel: mx.array) -> mx.array:
    """Return a checkpoint's depthwise kernel as `[K, C]`, the oldest token's row first.

    Args:
        kernel: `[C, 1, K]` as Hugging Face stores it, or `[C, K, 1]` as MLX does.
    """
    return kernel.reshape(kernel.shape[0], -1).T


class ShortConv(nn.Module):
    """`out[t] = bias + sum_i weight[i] * x[t - K + 1 + i]`, for each channel on its own.

    What came before a sequence's first token counts as zeros. Sums are made in float32; so is
    `activation`, if one is given, which is applied to them.

    Attributes:
        weight: `[K, C]`, see `taps`.
        bias: `[C]`, if it has one.
    """

    def __init__(
        self,
        channels: int,
        length: int,
        *,
        bias: bool = False,
        activation: Activation | None = None,
    ) -> None:
        """Make a convolution of `length` tokens, K, over `channels`, C."""
        super().__init__()
        self._activation = activation
        self._cut: tuple[mx.array, list[mx.array]] | None = None
        self.weight = mx.zeros((length, channels))
        if bias:
            self.bias = mx.zeros((channels,))

    def __call__(self, x: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        """Convolve `L` tokens of `N` sequences.

        Args:
            x: `[N, L, C]`.
            state: The inputs of the K - 1 tokens before them, `[N, K - 1, C]`.

        Returns:
            The output `[N, L, C]` in the dtype of `x`, and the state after the tokens.
        """
        if x.shape[1] == 1:
            return self._step(x, state)
        window = mx.concatenate([state, x], axis=1)
        out = self._sums(window, x.shape[1])
        if "bias" in self:
            out = out + self.bias
        if self._activation is not None:
            out = self._activation(out)
        # a copy, if need be: a slice would keep the window alive until the next step
        return out.astype(x.dtype), mx.contiguous(window[:, x.shape[1] :])

    def _step(self, x: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        """Convolve one token; shapes as in `__call__`."""
        inputs = [*mx.split(state, state.shape[1], axis=1), x]
        out = _weighted(self._activation)(inputs, self._rows(), self.get("bias"))
        return out, mx.concatenate(inputs[1:], axis=1)

    def _rows(self) -> Sequence[mx.array]:
        """Return the rows `[C]` of the weight, cut out once."""
        if self._cut is None or self._cut[0] is not self.weight:
            rows = [row[0] for row in mx.split(self.weight, self.weight.shape[0])]
            mx.eval(rows)
            self._cut = (self.weight, rows)
        return self._cut[1]

    def _sums(self, window: mx.array, length: int) -> mx.array:
        weight = self.weight.astype(mx.float32)
        if device.is_gpu():
            kernel = weight.T[:, :, None]
            return mx.conv1d(window.astype(mx.float32), kernel, groups=kernel.shape[0])
        # on a CPU MLX's convolution takes four times as long as the sum of the shifted inputs
        terms = [window[:, i : i + length] * row for i, row in enumerate(weight)]
        return sum(terms[1:], terms[0])


@functools.cache
def _weighted(activation: Activation | None) -> Callable[..., mx.array]:
    """Return the sum of inputs by their weights, activated."""

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
