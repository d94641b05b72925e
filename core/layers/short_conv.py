"""A depthwise causal convolution over a few tokens, as a layer."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..metal.recurrent.short_conv import Activation, Taps, gated_short_conv, short_conv


def taps(kernel: mx.array) -> mx.array:
    """Return a checkpoint's depthwise kernel as `[K, C]`, the oldest token's row first.

    Args:
        kernel: `[C, 1, K]` as stored by Hugging Face, or `[C, K, 1]` as stored by MLX.
    """
    return kernel.reshape(kernel.shape[0], -1).T


class ShortConv(nn.Module):
    """`out[t] = bias + sum_i weight[i] * x[t - K + 1 + i]`, for each channel separately.

    Tokens before a sequence's first token count as zeros. Sums are float32, and so is the
    optional `activation`, which is applied to the sums.

    Attributes:
        weight: `[K, C]`, see `taps`.
        bias: `[C]`; only if `bias` was asked for.
    """

    def __init__(
        self,
        channels: int,
        length: int,
        *,
        bias: bool = False,
        activation: Activation | None = None,
    ) -> None:
        """Create a convolution of `length` tokens, K, over `channels`, C."""
        super().__init__()
        self._activation = activation
        self._taps: Taps | None = None
        self.weight = mx.zeros((length, channels))
        if bias:
            self.bias = mx.zeros((channels,))

    def __call__(
        self, x: mx.array, state: mx.array, *, start: int = 0
    ) -> tuple[mx.array, mx.array]:
        """Convolve `L` tokens of `N` sequences.

        Args:
            x: `[N, L, W]`, of which columns `start … start + C` are convolved.
            state: Inputs of the K - 1 tokens before, `[N, K - 1, C]`.
            start: First convolved column.

        Returns:
            The output `[N, L, C]` and the state after the tokens, in the dtype of `state`.
        """
        return short_conv(x, state, self._as_taps(), start=start)

    def gated(self, joined: mx.array, state: mx.array) -> tuple[mx.array, mx.array]:
        """Convolve `L` tokens between two gates: `c * conv(b * x)`.

        Args:
            joined: `b`, `c` and `x` side by side, `[N, L, 3 * C]`.
            state: Values of `b * x` for the K - 1 tokens before, `[N, K - 1, C]`.

        Returns:
            As `__call__`.
        """
        return gated_short_conv(joined, state, self._as_taps())

    def _as_taps(self) -> Taps:
        """Return the parameters, prepared again after a parameter was replaced."""
        bias = self.get("bias")
        known = self._taps
        if known is None or known.weight is not self.weight or known.bias is not bias:
            known = self._taps = Taps(self.weight, bias, self._activation)
        return known
