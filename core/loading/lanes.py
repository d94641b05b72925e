"""Builds the lane of a load plan: its pools, allocators and bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..contract.layer_spec import AttentionSpec
from ..engine.lanes import FlatLane, PagedLane
from ..kvcache.block_allocator import BlockAllocator
from ..kvcache.block_group import GrowPool
from ..kvcache.coordinator import Coordinator
from ..kvcache.flat_coordinator import FlatCoordinator
from ..kvcache.memory import MemoryCoordinator
from ..kvcache.state_keeper import StateKeeper
from ..pools.layer_pool import LayerPool
from .plan import LoadPlan


@attrs.frozen(eq=False)
class LaneBuilder:
    """Builds one lane, and enters its arrays in the account.

    Attributes:
        plan: The plan.
        memory: The model's account.
    """

    plan: LoadPlan
    memory: MemoryCoordinator

    def build(self) -> PagedLane | FlatLane:
        """Return the lane that the plan names."""
        return self._paged() if self.plan.model.lane == "paged" else self._flat()

    def _flat(self) -> FlatLane:
        """Return the lane of contiguous caches, with the paged one's budget."""
        model, pools = self.plan.model, self.plan.cache.pools
        cache = FlatCoordinator(pools.max_blocks - 1, model.block_size)
        return FlatLane(model.layout, cache)

    def _paged(self) -> PagedLane:
        """Return the lane of block-paged requests, its pools allocated."""
        model = self.plan.model
        self._register_states()
        pools = [self._pool(*group) for group in enumerate(model.layout.groups)]
        keeper = self._keeper()
        return PagedLane(
            model.layout,
            pools,
            self._coordinator(pools, keeper),
            block_size=model.block_size,
            max_num_seqs=model.scheduling.max_num_seqs,
            max_context=model.max_context,
            keeper=keeper,
        )

    def _register_states(self) -> None:
        """Enter the states of running sequences, for which there is room from now on."""
        state_bytes = self.plan.cache.pools.state_bytes
        if state_bytes:
            self.memory.register("recurrent states", state_bytes)

    def _pool(self, group: int, spec: AttentionSpec) -> LayerPool:
        model, num_blocks = self.plan.model, self.plan.cache.pools.groups[group].initial_blocks
        self.memory.register(f"pool {group}", self._pool_bytes(group, num_blocks))
        num_layers = model.layout.num_group_layers(group)
        return LayerPool(spec, num_layers, num_blocks, model.block_size, model.dtype)

    def _pool_bytes(self, group: int, num_blocks: int) -> int:
        model = self.plan.model
        return num_blocks * model.layout.block_bytes(group, model.block_size, model.dtype.size)

    def _coordinator(
        self, pools: Sequence[LayerPool], keeper: StateKeeper | None
    ) -> Coordinator:
        model, cache = self.plan.model, self.plan.cache
        # without a pool the blocks of one allocator still count tokens and name prefixes
        allocators = [
            BlockAllocator(group.initial_blocks, model.block_size, group.max_blocks)
            for group in cache.pools.groups
        ]
        grow = self._growth(pools) if cache.pools.dynamic else None
        return Coordinator(model.layout, allocators, grow, keeper, cache.max_slice)

    def _growth(self, pools: Sequence[LayerPool]) -> GrowPool:
        def grow(group: int, num_blocks: int) -> None:
            self.memory.update(f"pool {group}", self._pool_bytes(group, num_blocks))
            pools[group].grow(num_blocks)

        return grow

    def _keeper(self) -> StateKeeper | None:
        """Return the keeper of states at boundaries; None without recurrent layers."""
        model = self.plan.model
        if not model.layout.states:
            return None
        return StateKeeper(
            model.block_size,
            model.layout.state_bytes(model.dtype.size),
            max_bytes=self.plan.cache.snapshots.max_bytes,
            root=model.settings.cache.state_root_owner,
            account=self.memory,
        )
