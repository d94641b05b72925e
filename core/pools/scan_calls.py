"""How the tokens of a step are divided among the calls of a recurrence."""

from __future__ import annotations

import attrs

from ..contract.forward import StepBatch


@attrs.frozen
class ScanCall:
    """Rows whose recurrence is computed together.

    Attributes:
        rows: Their segments.
        start: Index of their first token in the step.
        num_rows: How many rows.
        length: Tokens a row.
        each: Whether the state after each token is wanted.
    """

    rows: slice
    start: int
    num_rows: int
    length: int
    each: bool


def scan_calls(batch: StepBatch) -> list[ScanCall]:
    """Return the calls of a step's scans, in token order: one a wave, then one a slice."""
    calls: list[ScanCall] = []
    row = start = 0
    for wave in batch.waves:
        n, length = wave.num_rows, wave.query_len
        calls.append(ScanCall(slice(row, row + n), start, n, length, each=length > 1))
        row, start = row + n, start + n * length
    for index, segment in enumerate(batch.segments[row:], row):
        part = slice(index, index + 1)
        calls.append(ScanCall(part, segment.start, 1, segment.length, each=False))
    return calls
