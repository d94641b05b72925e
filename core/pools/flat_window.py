"""The newest positions of one layer and sequence, contiguous: a rotating cache."""

from __future__ import annotations

import mlx.core as mx

from ..contract.layer_spec import SlidingWindow
from ..errors import CacheMisuseError


class FlatWindow:
    """Keys and values `[Hk, rows, D]` of a window and of the present step.

    Between two steps the window is the last `SlidingWindow.rows_at` rows. Rows that the step
    has moved past stay until the next write, because later layers may read them as aliases.
    """

    def __init__(self, spec: SlidingWindow) -> None:
        """Make an empty window."""
        self._spec = spec
        self._arrays: tuple[mx.array, mx.array] | None = None
        self._end = 0

    def write(self, k: mx.array, v: mx.array, position: int) -> None:
        """Append `k [L, Hk, D]` and `v [L, Hk, Dv]` at `[position, position + L)`.

        Raises:
            CacheMisuseError: `position` does not follow the last token.
        """
        if position != self._end:
            raise CacheMisuseError(
                f"write a window at position {position}", f"it ends at {self._end}"
            )
        new = (k.swapaxes(0, 1), v.swapaxes(0, 1))
        kept = () if self._arrays is None else (self.snapshot(),)
        self._arrays = _joined([*kept, new])
        self._end = position + k.shape[0]

    def rewind(self, position: int) -> None:
        """Drop the positions from `position` on, at most the positions of the last write.

        A write keeps the whole window before it, so the window at `position` is still held.
        """
        if self._arrays is not None and position < self._end:
            keys, values = self._arrays
            rows = keys.shape[1] - (self._end - position)
            self._arrays = (keys[:, :rows], values[:, :rows])
            self._end = position

    def read(self, length: int) -> tuple[mx.array, mx.array]:
        """Return the keys and values visible to the last `length` tokens, oldest first."""
        return self._newest(self._spec.window - 1 + length)

    def snapshot(self) -> tuple[mx.array, mx.array]:
        """Return the window's keys `[Hk, rows, D]` and values, oldest position first."""
        return self._newest(self._spec.rows_at(self._end))

    def arrays(self) -> tuple[mx.array, ...]:
        """Return the present arrays."""
        return self._arrays or ()

    def _newest(self, num_rows: int) -> tuple[mx.array, mx.array]:
        if self._arrays is None:
            raise CacheMisuseError("read a window", "nothing was written to it")
        keys, values = self._arrays
        num_rows = min(num_rows, keys.shape[1])  # a window may exceed what an index can be
        return keys[:, -num_rows:], values[:, -num_rows:]


def _joined(parts: list[tuple[mx.array, mx.array]]) -> tuple[mx.array, mx.array]:
    keys, values = ([part[i] for part in parts] for i in range(2))
    return mx.concatenate(keys, axis=1), mx.concatenate(values, axis=1)
