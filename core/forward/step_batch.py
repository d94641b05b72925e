"""Builds the arrays of a `StepBatch` from the rows of a step."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx

from ..contract.forward import Segment, StepBatch, Tap, Wave


@attrs.frozen
class RowInput:
    """One sequence's part of a step.

    Attributes:
        position: Absolute position of the first token.
        ids: The row's token ids, without a first token that is still on the device.
        source: Index of the first token among the previous step's sampled tokens; None if
            `ids` has all tokens.
        num_logits: Number of last tokens that want logits.
        num_hidden: Number of last tokens that want hidden states.
    """

    position: int
    ids: Sequence[int]
    source: int | None = None
    num_logits: int = 1
    num_hidden: int = 0

    @property
    def length(self) -> int:
        """Tokens of the row."""
        return len(self.ids) + (self.source is not None)


def _segments(rows: Sequence[RowInput]) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    start = 0
    for row in rows:
        segments.append(Segment(start, row.length, row.position))
        start += row.length
    return tuple(segments)


def _ids(rows: Sequence[RowInput], sampled: mx.array | None) -> mx.array:
    """Return ids `[T]`; rows whose token is on the device come first."""
    sources = [row.source for row in rows if row.source is not None]
    known = [token for row in rows for token in row.ids]
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


def _last_tokens(counts: Sequence[int], segments: Sequence[Segment]) -> mx.array:
    """Return the indices of the last `counts[i]` tokens of each segment `i`."""
    ends = [segment.start + segment.length for segment in segments]
    wanted = [
        index for end, n in zip(ends, counts, strict=True) for index in range(end - n, end)
    ]
    return mx.array(wanted, mx.int32) if wanted else mx.zeros((0,), mx.int32)


def build_step_batch(
    rows: Sequence[RowInput],
    sampled: mx.array | None,
    waves: tuple[Wave, ...] | None = None,
    taps: tuple[Tap, ...] = (),
) -> StepBatch:
    """Return the batch of a step.

    Args:
        rows: The rows of each wave, then slices. Rows with a token on the device come first.
        sampled: The previous step's sampled tokens `[R]`, evaluated or not.
        waves: The waves of the leading rows; None makes one wave of the leading rows with one
            token.
        taps: Places in the model whose hidden states are wanted.
    """
    waves = _decode_wave(rows) if waves is None else waves
    segments = _segments(rows)
    decodes = bool(waves) and waves[0].query_len == 1
    return StepBatch(
        ids=_ids(rows, sampled),
        positions=_positions(segments, waves[0].num_rows if decodes else 0),
        segments=segments,
        waves=waves,
        logit_rows=_last_tokens([row.num_logits for row in rows], segments),
        taps=taps,
        hidden_rows=_last_tokens([row.num_hidden for row in rows], segments) if taps else None,
    )


def _decode_wave(rows: Sequence[RowInput]) -> tuple[Wave, ...]:
    n = next((i for i, row in enumerate(rows) if row.length > 1), len(rows))
    return (Wave(n, 1),) if n else ()
