"""The block tables of running sequences on the device.

A table grows by one block every `S` tokens. Sending whole tables with each step would cost
host time that grows with the context, so each step sends only the changed entries.
"""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx


class DeviceTables:
    """Block ids `[num_rows, width]` of one group, int32; unused entries are the null block.

    Owned by the engine thread. A row's entries are valid up to the length of the sequence's
    table. Later entries may be stale entries of another sequence, and readers must mask them.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self._table = mx.zeros((num_rows, width), mx.int32)
        mx.eval(self._table)

    @property
    def array(self) -> mx.array:
        """The present entries of all rows. References to the array must not outlive a step."""
        return self._table

    def update(self, entries: Iterable[tuple[int, int, int]]) -> None:
        """Set `(row, index, block id)` entries, as part of the next step's graph."""
        triples = list(entries)
        if not triples:
            return
        rows, indices, ids = (mx.array(column) for column in zip(*triples, strict=True))
        self._table[rows, indices] = ids

    def rows(self, rows: mx.array, width: int, first: mx.array | None = None) -> mx.array:
        """Return `width` entries `[N, width]` of `rows [N]`.

        Args:
            rows: Indices of rows.
            width: Entries per row.
            first: Index of each row's first entry `[N]`; None means 0. Indices beyond the
                table's width give the last entry.
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
