"""The two disciplines under which turns run: block-paged, and contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from ..contract.cache_spec import CacheLayout
from ..contract.forward import ForwardContext, StepBatch
from ..forward.flat_context import FlatContext
from ..forward.paged_context import PagedContext
from ..kvcache.coordinator import Coordinator
from ..kvcache.device_tables import DeviceTables
from ..kvcache.flat_cache import FlatCoordinator
from ..kvcache.layer_pool import LayerPool
from ..kvcache.stats import CacheStats


class Lane(Protocol):
    """A cache and the context that reads and writes it."""

    @property
    def cache(self) -> Any:
        """The bookkeeping, a `scheduler.cache_port.CachePort`."""
        ...

    def context(self, batch: StepBatch, sequences: Sequence[Any]) -> ForwardContext:
        """Return the context of a step.

        Args:
            batch: The step's tokens.
            sequences: The sequence of each segment.
        """
        ...

    def arrays(self, sequences: Sequence[Any]) -> list[mx.array]:
        """Return the arrays that a step over `sequences` updates."""
        ...

    def reset(self) -> None:
        """Forget everything after the device failed; no turn may be running."""
        ...

    def stats(self) -> CacheStats | None:
        """Return the cache's figures, None if nothing is shared."""
        ...


class PagedLane:
    """Turns share the pools of all groups.

    Attributes:
        cache: The coordinator.
        pools: One pool a group.
    """

    def __init__(
        self,
        layout: CacheLayout,
        pools: Sequence[LayerPool],
        cache: Coordinator,
        *,
        block_size: int,
        max_num_seqs: int,
        max_context: int,
    ) -> None:
        self.cache = cache
        self.pools = pools
        self._layout = layout
        self._block_size = block_size
        width = -(-max_context // block_size)
        # twice as many rows as turns: a row of a released sequence is reclaimed lazily
        num_rows = 2 * max_num_seqs
        self._tables = [DeviceTables(num_rows, width) for _ in pools]
        self._free_rows = list(range(num_rows))
        self._rows: dict[Any, int] = {}

    def _row(self, sequence: Any) -> int:
        row = self._rows.get(sequence.id)
        if row is None:
            row = self._rows[sequence.id] = self._free_rows.pop()
        return row

    def _reclaim_rows(self, sequences: Sequence[Any]) -> None:
        """Free the rows of sequences that are gone, when a step could run out of rows."""
        if len(self._free_rows) >= len(sequences):
            return
        running = {sequence.id for sequence in sequences}
        for sequence_id in [
            i for i in self._rows if i not in running and not self.cache.is_live(i)
        ]:
            self._free_rows.append(self._rows.pop(sequence_id))

    def context(self, batch: StepBatch, sequences: Sequence[Any]) -> ForwardContext:
        """Return a `PagedContext` with tables that are up to date."""
        self._reclaim_rows(sequences)
        rows = [self._row(sequence) for sequence in sequences]
        for group, table in enumerate(self._tables):
            table.update(
                (row, index, block_id)
                for row, sequence in zip(rows, sequences, strict=True)
                for index, block_id in sequence.tables[group].take_unsynced()
            )
        return PagedContext(
            self._layout, self.pools, self._tables, batch, rows, self._block_size
        )

    def arrays(self, sequences: Sequence[Any]) -> list[mx.array]:
        """Return the pools' arrays."""
        return [array for pool in self.pools for array in pool.arrays()]

    def stats(self) -> CacheStats:
        """Return the cache's figures."""
        return self.cache.stats()

    def reset(self) -> None:
        """Empty the pools and the prefix tables: what the arrays hold is unknown."""
        self.cache.purge()
        for pool in self.pools:
            pool.clear()


class FlatLane:
    """Every turn has contiguous arrays of its own.

    Attributes:
        cache: The bookkeeping.
    """

    def __init__(self, layout: CacheLayout, cache: FlatCoordinator) -> None:
        self.cache = cache
        self._layout = layout

    def context(self, batch: StepBatch, sequences: Sequence[Any]) -> ForwardContext:
        """Return a `FlatContext`."""
        return FlatContext(self._layout, [s.arrays for s in sequences], batch)

    def arrays(self, sequences: Sequence[Any]) -> list[mx.array]:
        """Return the sequences' arrays."""
        return [array for sequence in sequences for array in sequence.arrays.arrays()]

    def reset(self) -> None:
        """Do nothing: arrays end with their sequences."""

    def stats(self) -> None:
        """Return None."""
