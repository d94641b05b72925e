"""Attention over pages in MLX operations: pages are gathered into contiguous arrays."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx

from ..contract.cache_spec import CacheLayout, Owned
from ..contract.forward import Scoring, Segment, StepBatch
from ..contract.heads import Projected
from ..contract.layer_spec import AttentionSpec, SlidingWindow
from ..kvcache.block_table import blocks_for
from ..layers.heads import prepare
from ..layers.rope import Rotation
from ..metal.attention.mlx_attention import decode_attention, prefill_attention
from ..pools.device_tables import DeviceTables
from ..pools.layer_pool import LayerPool
from .decode_buckets import DecodeWave


@attrs.frozen(eq=False)
class _GroupStep:
    """Arrays that all layers of a group share during one step.

    Attributes:
        window: Positions that a token sees; None for all positions.
        slots: The slot of each token, from `LayerPool.slots`.
        wave: The buckets of the decode rows.
        decode_pages: Page indices of each bucket, from `LayerPool.pages`.
        prefill_pages: Page indices of each slice, from its first visible block on.
        prefill_skips: Number of positions before each slice's first visible block.
    """

    window: int | None
    slots: mx.array
    wave: DecodeWave
    decode_pages: tuple[mx.array, ...]
    prefill_pages: tuple[mx.array, ...]
    prefill_skips: tuple[int, ...]


class GatheredAttention:
    """Writes keys and values to slots, and gathers pages through block tables.

    Tables, slots and masks are computed once per step and group.

    Attributes:
        in_place: False: MLX operations write.
    """

    in_place = False

    def __init__(
        self,
        layout: CacheLayout,
        pools: Sequence[LayerPool],
        tables: Sequence[DeviceTables],
        batch: StepBatch,
        rows: Sequence[int],
        block_size: int,
    ) -> None:
        """Prepare a step; see `PagedContext`."""
        self._layout = layout
        self._pools = pools
        self._batch = batch
        self._num_decode = batch.num_decode_rows
        self._block_size = block_size
        self._offsets = batch.positions % block_size
        self._rows = rows
        self._steps = self._prepare_all(tables) if tables else []

    def _prepare_all(self, tables: Sequence[DeviceTables]) -> list[_GroupStep]:
        n = self._num_decode
        self._decode_rows = mx.array(list(self._rows[:n]), mx.int32)
        prefill = zip(self._prefill, self._rows[n:], strict=True)
        row_of_token = mx.concatenate(
            [self._decode_rows, *(mx.full((s.length,), row, mx.int32) for s, row in prefill)]
        )
        places = (row_of_token, self._batch.positions // self._block_size)
        everything = self._wave(None)  # shared by all groups without a window
        return [
            self._prepare(pool, table, spec, places, everything)
            for pool, table, spec in zip(self._pools, tables, self._layout.groups, strict=True)
        ]

    def _wave(self, spec: AttentionSpec | None) -> DecodeWave:
        decode = self._batch.segments[: self._num_decode]
        return DecodeWave.of([s.position for s in decode], self._block_size, spec)

    def _prepare(
        self,
        pool: LayerPool,
        table: DeviceTables,
        spec: AttentionSpec,
        places: tuple[mx.array, mx.array],
        everything: DecodeWave,
    ) -> _GroupStep:
        windowed = isinstance(spec, SlidingWindow)
        wave = self._wave(spec) if windowed else everything
        first = [self._first_block(segment, spec) for segment in self._prefill]
        slices = zip(self._prefill, self._rows[self._num_decode :], first, strict=True)
        return _GroupStep(
            window=spec.window if windowed else None,
            slots=pool.slots(table.blocks_at(*places), self._offsets),
            wave=wave,
            decode_pages=tuple(
                pool.pages(table.rows(self._decode_rows[b.rows], b.num_blocks, b.first))
                for b in wave.buckets
            ),
            prefill_pages=tuple(
                pool.pages(
                    table.slice(row, begin, blocks_for(s.position + s.length, self._block_size))
                )
                for s, row, begin in slices
            ),
            prefill_skips=tuple(begin * self._block_size for begin in first),
        )

    @property
    def _prefill(self) -> Sequence[Segment]:
        return self._batch.segments[self._num_decode :]

    def _first_block(self, segment: Segment, spec: AttentionSpec) -> int:
        return spec.first_visible(segment.position) // self._block_size

    def attend(
        self,
        owner: Owned,
        q: mx.array,
        k: mx.array | None,
        v: mx.array | None,
        scoring: Scoring,
    ) -> mx.array:
        """Store keys and values in the owner's pool, then attend."""
        pool, step = self._pools[owner.group], self._steps[owner.group]
        if k is not None and v is not None:
            pool.write(owner.ordinal, k, v, step.slots)
        parts: list[mx.array] = []
        if self._num_decode:
            parts.append(self._decode(q, pool, owner.ordinal, step, scoring))
        slices = zip(self._prefill, step.prefill_pages, step.prefill_skips, strict=True)
        for segment, pages, skipped in slices:
            part = slice(segment.start, segment.start + segment.length)
            if segment.position == 0 and k is not None and v is not None:
                # the step contains all visible keys, so no page is read
                keys, values = k[part].swapaxes(0, 1), v[part].swapaxes(0, 1)
            else:
                held = pool.gather(owner.ordinal, pages)
                end = segment.position + segment.length - skipped
                keys, values = (x[0, :, :end] for x in held)
            parts.append(prefill_attention(q[part], keys, values, scoring, window=step.window))
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def attend_projected(
        self,
        owner: Owned,
        projected: Projected,
        rotation: Rotation,
        scoring: Scoring,
    ) -> mx.array:
        """Make heads, store keys and values, then attend."""
        q, k, v = prepare(projected, rotation)
        return self.attend(owner, q, k, v, scoring)

    def _decode(
        self,
        q: mx.array,
        pool: LayerPool,
        ordinal: int,
        step: _GroupStep,
        scoring: Scoring,
    ) -> mx.array:
        """Attend for the decode rows by bucket; return `[N, Hq, Dv]` in the step's order."""
        parts: list[mx.array] = []
        for bucket, pages in zip(step.wave.buckets, step.decode_pages, strict=True):
            # a single bucket has the step's order, and decode rows are the first rows
            alone = step.wave.restore is None
            rows = q[: self._num_decode] if alone else q[bucket.rows]
            keys, values = pool.gather(ordinal, pages)
            parts.append(decode_attention(rows, keys, values, bucket.mask, scoring))
        if step.wave.restore is None:
            return parts[0]
        return mx.concatenate(parts)[step.wave.restore]
