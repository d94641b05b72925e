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
    """The state at a boundary that a row of a step reaches.

    Attributes:
        row: The row, whose `snapshot` says for whom the state is kept.
        state: The state, computed with the step.
    """

    row: PlannedRow
    state: KeptState


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

    @property
    def layout(self) -> CacheLayout:
        """The model's cache layout."""
        ...

    def prepare(self, batch: StepBatch, rows: Sequence[PlannedRow]) -> LaneStep:
        """Begin a step.

        Args:
            batch: The step's tokens.
            rows: The planned row of each segment.
        """
        ...

    def snapshots(self, plan: StepPlan) -> list[RowSnapshot]:
        """Return the states at boundaries that the step that was built last will reach."""
        ...

    def arrays(self, rows: Sequence[PlannedRow]) -> list[mx.array]:
        """Return the arrays that a step of `rows` updates."""
        ...

    @property
    def tokens(self) -> list[mx.array]:
        """What the last writes of kernels returned; see `metal.attention.pages`."""
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
        cache.bind_states(self.states)
        self.layout = layout
        self._block_size = block_size
        width = -(-max_context // block_size)
        # twice as many rows as requests: a row of a released sequence is reclaimed lazily
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
        """Free the rows of sequences that are gone, when a step could run out of rows."""
        if len(self._free_rows) >= len(sequences):
            return
        running = set(sequences)
        for sequence in [
            i for i in self._rows if i not in running and not self.cache.is_live(i)
        ]:
            self._free_rows.append(self._rows.pop(sequence))

    def prepare(self, batch: StepBatch, rows: Sequence[PlannedRow]) -> PagedStep:
        """Bring tables up to date, and say where the step's rows and states are.

        From now on the sequences' states are those that the step will compute.
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
        """Return the states at boundaries that the step that was built last will reach."""
        return [
            RowSnapshot(row, KeptState(row.end, self.states.snapshot(row.sequence)))
            for row in plan.rows
            if row.snapshot != "none"
        ]

    def state_of_bytes(self, pieces: Sequence[memoryview]) -> StateStack:
        """Return a state of which `state_store.state_bytes` took the bytes."""
        layers = [i for i, r in enumerate(self.layout.routes) if isinstance(r, Recurrent)]
        (spec,) = self.layout.states
        return state_of_bytes(pieces, layers, spec, self.pools[0].dtype)

    def arrays(self, rows: Sequence[PlannedRow]) -> list[mx.array]:
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
    """Every request has contiguous arrays of its own; `kvcache.flat_coordinator.FlatArrays`.

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
        """Forget a sequence's arrays."""
        self._caches.pop(sequence, None)

    def arrays(self, rows: Sequence[PlannedRow]) -> list[mx.array]:
        """Return the sequences' arrays."""
        return [array for row in rows for array in self._cache_of(row).arrays()]

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
