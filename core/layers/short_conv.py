"""Depthwise causal convolution over a few tokens, one step after the other."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..metal import device


def taps(kernel: mx.array) -> mx.array:
    """Return a checkpoint's depthwise kernel as `[K, C]`, the oldest token's row first.

    Args:
        kernel: `[C, 1, K]` as Hugging Face stores it, or `[C, K, 1]` as MLX does.
    """
    return kernel.reshape(kernel.shape[0], -1).T


class ShortConv(nn.Module):
    """`out[t] = bias + sum_i weight[i] * x[t - K + 1 + i]`, for each channel on its own.

    What came before a sequence's first token counts as zeros. Sums are made in float32.

    Attributes:
        weight: `[K, C]`, see `taps`.
        bias: `[C]`, if it has one.
    """

    def __init__(self, channels: int, length: int, *, bias: bool = False) -> None:
        """Make a convolution of `length` tokens, K, over `channels`, C."""
        super().__init__()
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
        window = mx.concatenate([state, x], axis=1)
        out = self._sums(window, x.shape[1])
        if "bias" in self:
            out = out + self.bias
        # a copy, if need be: a slice would keep the window alive until the next step
        return out.astype(x.dtype), mx.contiguous(window[:, x.shape[1] :])

    def _sums(self, window: mx.array, length: int) -> mx.array:
        weight = self.weight.astype(mx.float32)
        if length == 1:
            return (window * weight).sum(axis=1, keepdims=True)
        if device.is_gpu():
            kernel = weight.T[:, :, None]
            return mx.conv1d(window.astype(mx.float32), kernel, groups=kernel.shape[0])
        # on a CPU MLX's convolution takes four times as long as the sum of the shifted inputs
        terms = [window[:, i : i + length] * row for i, row in enumerate(weight)]
        return sum(terms[1:], terms[0])
