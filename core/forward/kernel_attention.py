"""Attention over pages by kernels, which read and write pages in place."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx

from ..contract.cache_spec import CacheLayout, Owned
from ..contract.forward import Scoring, StepBatch
from ..contract.heads import Projected
from ..contract.layer_spec import SlidingWindow
from ..layers.rope import Rotation
from ..metal.attention.decode_projected import decode_projected
from ..metal.attention.head_shape import HeadShape, Norms, Slots, Turns
from ..metal.attention.heads import prepare_heads
from ..metal.attention.paged_attention import paged_decode, paged_prefill
from ..metal.attention.pages import GroupPages

SHORTEST = 512
"""Smallest bound on decode contexts in tokens. Each bound needs a trace of its own."""


@attrs.frozen(eq=False)
class StepRows:
    """The rows of a step in the device tables.

    Attributes:
        of_tokens: Table row of each token `[T]`, int32.
        longest: Bound on the decode rows' contexts in tokens, a power of two.
    """

    of_tokens: mx.array
    longest: int

    @classmethod
    def of(cls, batch: StepBatch, rows: Sequence[int]) -> StepRows:
        """Return the rows of a step from the table row of each segment."""
        pairs = zip(batch.segments, rows, strict=True)
        repeated = [row for segment, row in pairs for _ in range(segment.length)]
        return cls(mx.array(repeated, mx.int32), longest_context(batch))


def longest_context(batch: StepBatch) -> int:
    """Return the least power of two >= every decode row's context and >= `SHORTEST`."""
    decode = batch.segments[: batch.num_decode_rows]
    longest = max((s.position + 1 for s in decode), default=0)
    return max(SHORTEST, 1 << (longest - 1).bit_length() if longest else 0)


class KernelAttention:
    """Writes keys and values to pages in place, and reads pages in place.

    Kernels derive the visible positions of a token from its row and position, so host work
    does not grow with the context.

    Attributes:
        in_place: Whether kernels have made all writes so far. An MLX operation in place of a
            kernel replaces the arrays of keys and values.
    """

    def __init__(
        self,
        layout: CacheLayout,
        groups: Sequence[GroupPages],
        tables: Sequence[mx.array],
        batch: StepBatch,
        rows: StepRows,
    ) -> None:
        """Prepare a step.

        Args:
            layout: The model's cache layout.
            groups: The pages of each group; a write replaces the write fence.
            tables: Block ids `[R, W]` of each group, up to date for every row of the step.
            batch: The step's tokens.
            rows: The rows of the step in the device tables.
        """
        self.in_place = True
        self._groups = groups
        self._tables = tables
        self._batch = batch
        self._rows = rows
        self._windows = [
            spec.window if isinstance(spec, SlidingWindow) else None for spec in layout.groups
        ]

    def attend(
        self,
        owner: Owned,
        q: mx.array,
        k: mx.array | None,
        v: mx.array | None,
        scoring: Scoring,
    ) -> mx.array:
        """Store keys and values in the owner's pages, then attend."""
        if k is None or v is None:
            return self._attend(owner, q, scoring)
        shape = HeadShape(q.shape[1], k.shape[1], q.shape[2], v.shape[2])
        projected = mx.concatenate([x.flatten(1) for x in (q, k, v)], axis=-1)
        return self._make(owner, projected, shape, None, (None, None, None), scoring)

    def attend_projected(
        self,
        owner: Owned,
        projected: Projected,
        rotation: Rotation,
        scoring: Scoring,
    ) -> mx.array:
        """Make heads, store keys and values, then attend."""
        turns = None if projected.rope is None else rotation.turns(projected.rope)
        norms = (projected.q_norm, projected.k_norm, projected.v_norm)
        return self._make(owner, projected.joined, projected.shape, turns, norms, scoring)

    def _make(
        self,
        owner: Owned,
        projected: mx.array,
        shape: HeadShape,
        turns: Turns | None,
        norms: Norms,
        scoring: Scoring,
    ) -> mx.array:
        """Make heads, store, attend; in one launch if every row is a decode row."""
        if self._batch.num_decode_rows < len(self._batch.segments):
            q = self._store(owner, projected, shape, turns, norms)
            return self._attend(owner, q, scoring)
        out, fence = decode_projected(
            projected,
            self._groups[owner.group].layer(owner.ordinal),
            self._slots(owner),
            turns,
            scoring,
            shape=shape,
            norms=norms,
            longest=self._rows.longest,
            window=self._windows[owner.group],
        )
        if shape.kv_heads:
            self._written(owner, fence)
        return out

    def _slots(self, owner: Owned) -> Slots:
        table = self._tables[owner.group]
        return Slots(table, self._rows.of_tokens, self._batch.positions)

    def _written(self, owner: Owned, fence: mx.array) -> None:
        """Set the group's write fence to the fence that a write returned."""
        group = self._groups[owner.group]
        self.in_place = self.in_place and fence is not group.fence
        group.fence = fence

    def _store(
        self,
        owner: Owned,
        projected: mx.array,
        shape: HeadShape,
        turns: Turns | None,
        norms: Norms,
    ) -> mx.array:
        """Make heads, write keys and values to pages, and return the queries."""
        if not shape.kv_heads:
            return prepare_heads(projected, None, None, turns, shape=shape, norms=norms)[0]
        pages = self._groups[owner.group].layer(owner.ordinal)
        slots = self._slots(owner)
        q, fence = prepare_heads(projected, pages, slots, turns, shape=shape, norms=norms)
        assert fence is not None
        self._written(owner, fence)
        return q

    def _attend(self, owner: Owned, q: mx.array, scoring: Scoring) -> mx.array:
        pages = self._groups[owner.group].layer(owner.ordinal)
        table, n = self._tables[owner.group], self._batch.num_decode_rows
        rows, positions = self._rows.of_tokens, self._batch.positions
        window = self._windows[owner.group]
        parts: list[mx.array] = []
        if n:
            parts.append(
                paged_decode(
                    q[:n],
                    pages,
                    table,
                    rows[:n],
                    positions[:n],
                    scoring,
                    longest=self._rows.longest,
                    window=window,
                )
            )
        for segment in self._batch.segments[n:]:
            part = slice(segment.start, segment.start + segment.length)
            first = slice(segment.start, segment.start + 1)
            parts.append(
                paged_prefill(
                    q[part],
                    pages,
                    table,
                    rows[first],
                    positions[first],
                    scoring,
                    start=segment.position,
                    window=window,
                )
            )
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)
