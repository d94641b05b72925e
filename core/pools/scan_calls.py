"""The scan calls of a step: groups of rows whose recurrence runs in one call."""

from __future__ import annotations

import attrs

from ..contract.forward import StepBatch


@attrs.frozen
class ScanCall:
    """Rows whose recurrence is computed in one call.

    Attributes:
        rows: The segments of the rows.
        start: Index of the first token in the step.
        num_rows: Number of rows.
        length: Tokens per row.
        each: Whether the state after each token is kept.
    """

    rows: slice
    start: int
    num_rows: int
    length: int
    each: bool


def scan_calls(batch: StepBatch) -> list[ScanCall]:
    """Return the scan calls of a step in token order: one per wave, then one per slice."""
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
