"""Lanes: the two cache implementations of the engine, block-paged and contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import mlx.core as mx

from ..contract.cache_spec import CacheLayout, Recurrent
from ..contract.forward import ForwardContext, StepBatch
from ..forward.flat_context import FlatContext
from ..forward.paged_step import PagedStep
from ..ids import SequenceId
from ..kvcache.coordinator import Coordinator
from ..kvcache.flat_coordinator import FlatCoordinator
from ..kvcache.state_keeper import KeptState, StateKeeper
from ..kvcache.stats import CacheStats
from ..pools.device_tables import DeviceTables
from ..pools.flat_cache import FlatCache
from ..pools.layer_pool import LayerPool
from ..pools.state_store import StateStack, StateStore, state_of_bytes
from ..scheduler.plan import PlannedRow, StepPlan


@attrs.frozen(eq=False)
class RowSnapshot:
    """The state at the end of a row that ends at a boundary.

    Attributes:
        row: The row. `row.snapshot` says when the state is published.
        state: The lazy state.
    """

    row: PlannedRow
    state: KeptState


class LaneStep(Protocol):
    """The cache arrays of one step of a lane."""

    def context(self, batch: StepBatch) -> ForwardContext:
        """Return the step's context."""
        ...


class Lane(Protocol):
    """A cache: bookkeeping, arrays, and the forward context over the arrays."""

    @property
    def cache(self) -> Any:
        """The bookkeeping; implements `scheduler.cache_port.CachePort`."""
        ...

    @property
    def layout(self) -> CacheLayout:
        """The model's cache layout."""
        ...

    def prepare(self, batch: StepBatch, rows: Sequence[PlannedRow]) -> LaneStep:
        """Prepare the cache arrays of a step.

        Args:
            batch: The step's tokens.
            rows: The planned row of each segment.
        """
        ...

    def snapshots(self, plan: StepPlan) -> list[RowSnapshot]:
        """Return the lazy states of the newest step's rows that end at boundaries."""
        ...

    def arrays(self, rows: Sequence[PlannedRow]) -> list[mx.array]:
        """Return the arrays that a step of `rows` updates."""
        ...

    @property
    def fences(self) -> list[mx.array]:
        """The newest write fence of each group; see `metal.attention.pages`."""
        ...

    def reset(self) -> None:
        """Clear the cache after a failed step; no request may be running."""
        ...

    def stats(self) -> CacheStats | None:
        """Return the cache's figures; None on the flat path."""
        ...


class PagedLane:
    """The block-paged lane: all requests share the pools of each group.

    Attributes:
        cache: The coordinator.
        layout: The model's cache layout.
        pools: One pool per group.
        states: The recurrent states of running requests; empty without recurrent layers.
        keeper: The snapshots of recurrent states; None without recurrent layers.
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
        keeper: StateKeeper | None = None,
    ) -> None:
        self.cache = cache
        self.keeper = keeper
        self.pools = pools
        self.states = StateStore()
        cache.bind_states(self.states)
        self.layout = layout
        self._block_size = block_size
        width = -(-max_context // block_size)
        # twice as many rows as requests: rows of released sequences are reclaimed lazily
        num_rows = 2 * max_num_seqs
        self._tables = [DeviceTables(num_rows, width) for _ in pools]
        self._free_rows = list(range(num_rows))
        self._rows: dict[SequenceId, int] = {}

    def _row(self, sequence: SequenceId) -> int:
        row = self._rows.get(sequence)
        if row is None:
            row = self._rows[sequence] = self._free_rows.pop()
        return row

    def _reclaim_rows(self, sequences: Sequence[SequenceId]) -> None:
        """Free the rows of released sequences if a step may run out of rows."""
        if len(self._free_rows) >= len(sequences):
            return
        running = set(sequences)
        for sequence in [
            i for i in self._rows if i not in running and not self.cache.is_live(i)
        ]:
            self._free_rows.append(self._rows.pop(sequence))

    def prepare(self, batch: StepBatch, rows: Sequence[PlannedRow]) -> PagedStep:
        """Update the device tables and return the pools, tables and states of the step.

        The sequences' states become the states after the step.
        """
        sequences = [row.sequence for row in rows]
        self._reclaim_rows(sequences)
        places = [self._row(sequence) for sequence in sequences]
        for group, table in enumerate(self._tables):
            table.update(
                (place, *change)
                for place, row in zip(places, rows, strict=True)
                for change in row.blocks[group]
            )
        states = self.states.begin(batch, sequences) if self.layout.states else []
        return PagedStep(
            self.layout, self.pools, self._tables, self._block_size, places, states
        )

    def snapshots(self, plan: StepPlan) -> list[RowSnapshot]:
        """Return the lazy states of the newest step's rows that end at boundaries."""
        return [
            RowSnapshot(row, KeptState(row.end, self.states.snapshot(row.sequence)))
            for row in plan.rows
            if row.snapshot != "none"
        ]

    def state_of_bytes(self, pieces: Sequence[memoryview]) -> StateStack:
        """Return the state that `state_store.state_bytes` serialised."""
        layers = [i for i, r in enumerate(self.layout.routes) if isinstance(r, Recurrent)]
        (spec,) = self.layout.states
        return state_of_bytes(pieces, layers, spec, self.pools[0].dtype)

    def arrays(self, rows: Sequence[PlannedRow]) -> list[mx.array]:
        """Return the arrays of pools and states."""
        pools = [array for pool in self.pools for array in pool.arrays()]
        return pools + self.states.arrays()

    @property
    def fences(self) -> list[mx.array]:
        """The newest write fence of each group."""
        return [pool.group.fence for pool in self.pools]

    def stats(self) -> CacheStats:
        """Return the cache's figures."""
        return self.cache.stats()

    def reset(self) -> None:
        """Clear pools, states and prefix tables: the contents of the arrays are unknown."""
        self.cache.purge()
        for pool in self.pools:
            pool.clear()
        self.states.clear()


@attrs.frozen(eq=False)
class FlatStep:
    """The arrays of one step's rows.

    Attributes:
        layout: The model's cache layout.
        caches: The cache of each segment's sequence.
    """

    layout: CacheLayout
    caches: Sequence[FlatCache]

    def context(self, batch: StepBatch) -> FlatContext:
        """Return the step's context."""
        return FlatContext(self.layout, self.caches, batch)


class FlatLane:
    """The flat lane: each request has contiguous arrays. Implements `FlatArrays`.

    Attributes:
        cache: The bookkeeping.
        layout: The model's cache layout.
    """

    def __init__(self, layout: CacheLayout, cache: FlatCoordinator) -> None:
        self.cache = cache
        self.layout = layout
        self._caches: dict[SequenceId, FlatCache] = {}
        cache.live = self

    def prepare(self, batch: StepBatch, rows: Sequence[PlannedRow]) -> FlatStep:
        """Return the sequences' arrays."""
        return FlatStep(self.layout, [self._cache_of(row) for row in rows])

    def _cache_of(self, row: PlannedRow) -> FlatCache:
        return self._caches.setdefault(row.sequence, FlatCache())

    def rewind(self, sequence: SequenceId, position: int) -> None:
        """Take a sequence's arrays back to an earlier position of its last step."""
        if sequence in self._caches:
            self._caches[sequence].rewind(position)

    def release(self, sequence: SequenceId) -> None:
        """Free a sequence's arrays."""
        self._caches.pop(sequence, None)

    def arrays(self, rows: Sequence[PlannedRow]) -> list[mx.array]:
        """Return the sequences' arrays."""
        return [array for row in rows for array in self._cache_of(row).arrays()]

    @property
    def fences(self) -> list[mx.array]:
        """Empty: contiguous arrays have no write fences."""
        return []

    def snapshots(self, plan: StepPlan) -> list[RowSnapshot]:
        """Return no snapshots: the flat path has no prefix cache."""
        return []

    def reset(self) -> None:
        """Do nothing: arrays are freed with their sequences."""

    def stats(self) -> None:
        """Return None."""
