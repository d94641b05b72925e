"""The two disciplines under which requests run: block-paged, and contiguous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import mlx.core as mx

from ..contract.cache_spec import CacheLayout, Recurrent
from ..contract.forward import ForwardContext, StepBatch
from ..forward.flat_context import FlatContext
from ..forward.paged_step import PagedStep
from ..kvcache.coordinator import Coordinator
from ..kvcache.state_keeper import KeptState, StateKeeper
from ..kvcache.stats import CacheStats
from ..pools.device_tables import DeviceTables
from ..pools.flat_cache import FlatCache, FlatCoordinator
from ..pools.layer_pool import LayerPool
from ..pools.state_store import StateRows, StateStack, StateStore, state_of_bytes
from ..scheduler.plan import PlannedRow, StepPlan


@attrs.frozen(eq=False)
class RowSnapshot:
    """The state at a boundary that a row of a step reaches.

    Attributes:
        row: The row.
        state: The state, computed with the step.
        rung: Its prefill was cut for it.
    """

    row: PlannedRow
    state: KeptState
    rung: bool


class LaneStep(Protocol):
    """What a step of a lane begins with."""

    def context(self, batch: StepBatch) -> ForwardContext:
        """Return the step's context."""
        ...


class Lane(Protocol):
    """A cache and the context that reads and writes it."""

    @property
    def cache(self) -> Any:
        """The bookkeeping, a `scheduler.cache_port.CachePort`."""
        ...

    def prepare(self, batch: StepBatch, sequences: Sequence[Any]) -> LaneStep:
        """Begin a step.

        Args:
            batch: The step's tokens.
            sequences: The sequence of each segment.
        """
        ...

    def snapshots(self, plan: StepPlan) -> list[RowSnapshot]:
        """Return the states at boundaries that the step that was built last will reach."""
        ...

    def arrays(self, sequences: Sequence[Any]) -> list[mx.array]:
        """Return the arrays that a step over `sequences` updates."""
        ...

    @property
    def tokens(self) -> list[mx.array]:
        """What the last writes of kernels returned; see `metal.pages`."""
        ...

    def reset(self) -> None:
        """Forget everything after the device failed; no request may be running."""
        ...

    def stats(self) -> CacheStats | None:
        """Return the cache's figures, None if nothing is shared."""
        ...


class PagedLane:
    """Requests share the pools of all groups.

    Attributes:
        cache: The coordinator.
        layout: The model's cache layout.
        pools: One pool a group.
        states: The recurrent states of running requests; empty if no layer keeps one.
        keeper: Those that outlive their requests; None without such layers.
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
        self.layout = layout
        self._block_size = block_size
        width = -(-max_context // block_size)
        # twice as many rows as requests: a row of a released sequence is reclaimed lazily
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

    def prepare(self, batch: StepBatch, sequences: Sequence[Any]) -> PagedStep:
        """Bring tables up to date, and say where the step's rows and states are.

        From now on the sequences' states are those that the step will compute.
        """
        self._reclaim_rows(sequences)
        rows = [self._row(sequence) for sequence in sequences]
        for group, table in enumerate(self._tables):
            table.update(
                (row, index, block_id)
                for row, sequence in zip(rows, sequences, strict=True)
                for index, block_id in sequence.tables[group].take_unsynced()
            )
        states = self._begin_states(batch, sequences) if self.layout.states else []
        return PagedStep(self.layout, self.pools, self._tables, self._block_size, rows, states)

    def _begin_states(self, batch: StepBatch, sequences: Sequence[Any]) -> list[StateRows]:
        for segment, sequence in zip(batch.segments, sequences, strict=True):
            if sequence.state is not None:
                self.states.install(sequence, segment.position, sequence.state)
                sequence.state = None  # the store has it; a second name would keep it alive
        return self.states.begin(batch, sequences)

    def snapshots(self, plan: StepPlan) -> list[RowSnapshot]:
        """Return the states at boundaries that the step that was built last will reach."""
        if not self.layout.states:
            return []
        ends = [(row, row.position + row.length) for row in plan.rows]
        return [
            RowSnapshot(
                row,
                KeptState(end, self.states.snapshot(row.sequence)),
                end in row.request.rungs,
            )
            for row, end in ends
            if end in row.request.rungs or (row.samples and end % self._block_size == 0)
        ]

    def state_of_bytes(self, pieces: Sequence[memoryview]) -> StateStack:
        """Return a state of which `state_store.state_bytes` took the bytes."""
        layers = [i for i, r in enumerate(self.layout.routes) if isinstance(r, Recurrent)]
        (spec,) = self.layout.states
        return state_of_bytes(pieces, layers, spec, self.pools[0].dtype)

    def arrays(self, sequences: Sequence[Any]) -> list[mx.array]:
        """Return the arrays of pools and states."""
        pools = [array for pool in self.pools for array in pool.arrays()]
        return pools + self.states.arrays()

    @property
    def tokens(self) -> list[mx.array]:
        """What the last writes of kernels to each group returned."""
        return [pool.group.token for pool in self.pools]

    def stats(self) -> CacheStats:
        """Return the cache's figures."""
        return self.cache.stats()

    def reset(self) -> None:
        """Empty the pools and the prefix tables: what the arrays hold is unknown."""
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
    """Every request has contiguous arrays of its own.

    Attributes:
        cache: The bookkeeping.
    """

    def __init__(self, layout: CacheLayout, cache: FlatCoordinator) -> None:
        self.cache = cache
        self.layout = layout

    def prepare(self, batch: StepBatch, sequences: Sequence[Any]) -> FlatStep:
        """Return the sequences' arrays."""
        return FlatStep(self.layout, [s.arrays for s in sequences])

    def arrays(self, sequences: Sequence[Any]) -> list[mx.array]:
        """Return the sequences' arrays."""
        return [array for sequence in sequences for array in sequence.arrays.arrays()]

    @property
    def tokens(self) -> list[mx.array]:
        """None, for its arrays are no pages."""
        return []

    def snapshots(self, plan: StepPlan) -> list[RowSnapshot]:
        """Return none: nothing outlives its request."""
        return []

    def reset(self) -> None:
        """Do nothing: arrays end with their sequences."""

    def stats(self) -> None:
        """Return None."""
