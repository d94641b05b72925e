"""The pools, tables and states of a step over block-paged pools."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..contract.cache_spec import CacheLayout
from ..contract.forward import StepBatch
from ..metal.runtime import launch
from ..pools.device_tables import DeviceTables
from ..pools.layer_pool import LayerPool
from ..pools.state_store import StateRows
from .gathered_attention import GatheredAttention
from .kernel_attention import KernelAttention, StepRows
from .paged_context import PagedContext


@attrs.frozen(eq=False)
class PagedStep:
    """The pools, tables and states of one step's rows.

    Attributes:
        layout: The model's cache layout.
        pools: One pool per group.
        tables: One device table per group, up to date for every row of the step.
        block_size: Tokens of a block.
        rows: Table row of each segment's sequence.
        states: The result of `StateStore.begin`; empty without recurrent layers.
    """

    layout: CacheLayout
    pools: Sequence[LayerPool]
    tables: Sequence[DeviceTables]
    block_size: int
    rows: Sequence[int]
    states: Sequence[StateRows] = ()

    def context(self, batch: StepBatch) -> PagedContext:
        """Return the step's context. Without kernels, MLX operations compute attention."""
        if launch.backend() is None:
            attention = GatheredAttention(
                self.layout, self.pools, self.tables, batch, self.rows, self.block_size
            )
        else:
            attention = KernelAttention(
                self.layout,
                [pool.group for pool in self.pools],
                [table.array for table in self.tables],
                batch,
                StepRows.of(batch, self.rows),
            )
        return PagedContext(self.layout, batch, attention, self.states)
