"""From the rows of a step to the arrays of a `StepBatch`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx

from ..contract.forward import Segment, StepBatch


@attrs.frozen
class RowInput:
    """One sequence's part of a step.

    Attributes:
        position: Absolute position of its first token.
        ids: Its token ids, or None for a decode row whose token is still on the device.
        source: Index of that token among the previous step's sampled tokens.
        wants_logits: Whether the logits of its last token are wanted.
    """

    position: int
    ids: Sequence[int] | None
    source: int = -1
    wants_logits: bool = True

    @property
    def length(self) -> int:
        """Tokens."""
        return 1 if self.ids is None else len(self.ids)


def _segments(rows: Sequence[RowInput]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    start = 0
    for row in rows:
        segments.append(Segment(start, row.length, row.position))
        start += row.length
    return tuple(segments)


def _ids(rows: Sequence[RowInput], sampled: mx.array | None) -> mx.array:
    """Return ids `[T]`; rows whose token is on the device come first."""
    sources = [row.source for row in rows if row.ids is None]
    known = [token for row in rows if row.ids is not None for token in row.ids]
    parts: list[mx.array] = []
    if sources:
        assert sampled is not None
        same = sources == list(range(sampled.shape[0]))
        parts.append(sampled if same else sampled[mx.array(sources)])
    if known:
        parts.append(mx.array(known, mx.int32))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def _positions(segments: Sequence[Segment], num_decode_rows: int) -> mx.array:
    parts: list[mx.array] = []
    if num_decode_rows:
        parts.append(mx.array([s.position for s in segments[:num_decode_rows]], mx.int32))
    parts += [
        mx.arange(s.position, s.position + s.length, dtype=mx.int32)
        for s in segments[num_decode_rows:]
    ]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def build_step_batch(rows: Sequence[RowInput], sampled: mx.array | None) -> StepBatch:
    """Return the batch of a step.

    Args:
        rows: Decode rows first, those with a token on the device before the others; then
            prefill slices.
        sampled: The previous step's sampled tokens `[R]`, evaluated or not.
    """
    segments = _segments(rows)
    num_decode_rows = next((i for i, row in enumerate(rows) if row.length > 1), len(rows))
    last = [
        s.start + s.length - 1
        for s, row in zip(segments, rows, strict=True)
        if row.wants_logits
    ]
    return StepBatch(
        ids=_ids(rows, sampled),
        positions=_positions(segments, num_decode_rows),
        segments=segments,
        num_decode_rows=num_decode_rows,
        logit_rows=mx.array(last, mx.int32) if last else mx.zeros((0,), mx.int32),
    )
