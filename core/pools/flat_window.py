"""The newest positions of one layer and sequence, contiguous: a rotating cache."""

from __future__ import annotations

import mlx.core as mx

from ..contract.layer_spec import SlidingWindow
from ..errors import CacheMisuseError


class FlatWindow:
    """Keys and values `[Hk, rows, D]` of a window's positions and of the step that is run.

    Between two steps `SlidingWindow.rows_at` of them count. What a step has pushed out of the
    window stays until the next write: layers that read another one's keys come after it.
    """

    def __init__(self, spec: SlidingWindow) -> None:
        """Keep nothing yet."""
        self._spec = spec
        self._arrays: tuple[mx.array, mx.array] | None = None
        self._end = 0

    def write(self, k: mx.array, v: mx.array, position: int) -> None:
        """Append `k [L, Hk, D]` and `v [L, Hk, Dv]` at `[position, position + L)`.

        Raises:
            CacheMisuseError: The position is not the one behind the last token.
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
        """Forget the positions from `position` on, at most those of the last write.

        A write keeps the whole window before it, so the window at `position` is still held.
        """
        if self._arrays is not None and position < self._end:
            keys, values = self._arrays
            rows = keys.shape[1] - (self._end - position)
            self._arrays = (keys[:, :rows], values[:, :rows])
            self._end = position

    def read(self, length: int) -> tuple[mx.array, mx.array]:
        """Return keys and values that the last `length` tokens see, oldest first."""
        return self._newest(self._spec.window - 1 + length)

    def snapshot(self) -> tuple[mx.array, mx.array]:
        """Return the window's keys `[Hk, rows, D]` and values, oldest position first."""
        return self._newest(self._spec.rows_at(self._end))

    def arrays(self) -> tuple[mx.array, ...]:
        """Return the arrays as they are now."""
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
