"""RMS norms with gates; the gates are columns of a wider projection."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..metal.elementwise.gated_norm import gated_group_norm, gated_rms_norm


class GatedRMSNorm(nn.Module):
    """`x / rms(x) * weight * silu(gate)`, head by head: the norm comes before the gate."""

    def __init__(self, dims: int, *, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((dims,))
        self._eps = eps

    def __call__(self, x: mx.array, rows: mx.array, *, start: int = 0) -> mx.array:
        """Return heads `x [T, H, dims]` normed and gated, `[T, H * dims]`, in their dtype.

        Args:
            x: Heads to norm.
            rows: `[T, W]`; gates are its columns from `start` on.
            start: First column of the gates.
        """
        return gated_rms_norm(x, rows, self.weight, eps=self._eps, start=start)


class GatedGroupNorm(nn.Module):
    """`y / rms(y) * weight` with `y = x * silu(gate)`, group by group of channels.

    The gate comes before the norm. All operations are float32.
    """

    def __init__(self, dims: int, num_groups: int, *, eps: float) -> None:
        super().__init__()
        self.weight = mx.ones((dims,))
        self._num_groups = num_groups
        self._eps = eps

    def __call__(self, x: mx.array, rows: mx.array, *, start: int = 0) -> mx.array:
        """Return `x [T, dims]` gated and normed, in the dtype of the gates.

        Args:
            x: Channels to gate and norm.
            rows: `[T, W]`; gates are its columns from `start` on.
            start: First column of the gates.
        """
        return gated_group_norm(
            x, rows, self.weight, self._num_groups, eps=self._eps, start=start
        )
