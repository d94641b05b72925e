"""The block tables of the running sequences, mirrored on the device.

A table grows by one block every `S` tokens. Sending whole tables with each step would cost
the host time that grows with the context; this mirror is told only what changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx


class DeviceTables:
    """Block ids `[num_rows, width]` of one group, int32; unused entries are the null block.

    Owned by the engine thread. A row's entries are valid up to its table's length; what
    lies behind may be another sequence's leftovers and must be masked by the reader.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self._table = mx.zeros((num_rows, width), mx.int32)
        mx.eval(self._table)

    @property
    def array(self) -> mx.array:
        """All rows, as they are now; do not keep it."""
        return self._table

    def update(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Set `(row, index, block id)` triples; the update joins the next step's graph."""
        triples = list(entries)
        if not triples:
            return
        rows, indices, ids = (mx.array(column) for column in zip(*triples, strict=True))
        self._table[rows, indices] = ids

    def rows(self, rows: mx.array, width: int, first: mx.array | None = None) -> mx.array:
        """Return `width` entries `[N, width]` of `rows [N]`.

        Args:
            rows: Rows.
            width: Entries.
            first: Index of each row's first one `[N]`; None means 0. What lies behind the
                table's end is its last entry.
        """
        if first is None:
            return self._table[:, :width][rows]
        last = self._table.shape[1] - 1
        indices = mx.minimum(first[:, None] + mx.arange(width)[None], last)
        return self._table[rows[:, None], indices]

    def slice(self, row: int, first: int, end: int) -> mx.array:
        """Return the entries `[first, end)` of a row, `[1, end - first]`."""
        return self._table[row : row + 1, first:end]

    def blocks_at(self, rows: mx.array, indices: mx.array) -> mx.array:
        """Return the block id `[T]` at each `(row, index)`."""
        return self._table[rows, indices]
