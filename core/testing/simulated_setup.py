"""The size of a simulated engine."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..contract.cache_spec import CacheLayout
from ..contract.tap import Tap
from ..kvcache.block_allocator import BlockAllocator
from ..kvcache.block_group import GrowPool
from ..kvcache.coordinator import Coordinator
from ..kvcache.state_keeper import StateKeeper
from ..settings import SchedulerSettings

STATE_BYTES = 1
"""What a simulated state counts in the keeper's account."""


@attrs.frozen(kw_only=True)
class SimulatorSetup:
    """The size of a simulated engine.

    Attributes:
        layout: The model's cache layout.
        num_blocks: Blocks of each group's pool at first, the null block included.
        max_num_blocks: Blocks of each pool after growth; None for pools of fixed size.
        block_size: Tokens of a block.
        max_slice: Tokens of one sequence that a step computes, at most.
        max_context: Positions that the model can address.
        row_exact: See `Scheduler`.
        snapshots: States that the keeper may hold; 0 leaves the number to its own rules.
        want_ladder: Whether states are kept at shallow boundaries too.
        anchors: Boundaries, in blocks, at which windows are held on to.
        root: Owner of the root session, if there is one.
        taps: Places in the model whose hidden states are wanted of every token.
        scheduler: Widths and budgets.
    """

    layout: CacheLayout
    num_blocks: Sequence[int]
    max_num_blocks: Sequence[int] | None = None
    block_size: int = 4
    max_slice: int = 2048
    max_context: int = 2048
    row_exact: bool = False
    snapshots: int = 0
    want_ladder: bool = False
    anchors: Sequence[int] = ()
    root: str | None = None
    taps: tuple[Tap, ...] = ()
    scheduler: SchedulerSettings = attrs.field(factory=SchedulerSettings)

    def make_cache(self, grow: GrowPool) -> Coordinator:
        """Return an empty cache of this size."""
        most = self.max_num_blocks or self.num_blocks
        allocators = [
            BlockAllocator(n, self.block_size, m)
            for n, m in zip(self.num_blocks, most, strict=True)
        ]
        dynamic = self.max_num_blocks is not None
        cache = Coordinator(
            self.layout,
            allocators,
            grow if dynamic else None,
            self._keeper() if self.layout.states else None,
            self.max_slice,
        )
        if self.anchors and cache.kinds.windows is not None:
            cache.kinds.windows.pins.want_anchors(self.anchors)
        return cache

    def _keeper(self) -> StateKeeper:
        keeper = StateKeeper(
            self.block_size, STATE_BYTES, max_bytes=self.snapshots, root=self.root
        )
        keeper.want_ladder = self.want_ladder
        return keeper
