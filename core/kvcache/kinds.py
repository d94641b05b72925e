"""The kinds of cache groups in a layout, and a manager for each kind."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..contract.cache_spec import CacheLayout
from .block_allocator import BlockAllocator
from .block_group import BlockGroup, GrowPool
from .full_manager import FullManager
from .manager import Manager
from .resident import Resident
from .state_keeper import StateKeeper
from .state_manager import StateManager
from .window_manager import WindowManager


@attrs.frozen(eq=False)
class Kinds:
    """The managers of a layout.

    Attributes:
        full: The manager of groups without a window; None if every group has a window.
        windows: The manager of groups with a window; None without such groups.
        states: The manager of recurrent states; None without recurrent layers.
    """

    full: FullManager | None
    windows: WindowManager | None
    states: StateManager | None

    @property
    def managers(self) -> tuple[Manager, ...]:
        """The managers. The blocks of the first one define prefix lengths."""
        kinds = (self.full, self.windows, self.states)
        return tuple(manager for manager in kinds if manager is not None)

    @classmethod
    def of(
        cls,
        layout: CacheLayout,
        groups: Sequence[BlockGroup],
        block_size: int,
        keeper: StateKeeper | None,
    ) -> Kinds:
        """Divide a layout's groups by kind.

        Args:
            layout: The model's cache layout.
            groups: The attention groups, in the layout's order.
            block_size: Tokens of a block.
            keeper: Keeps snapshots of recurrent states; None: snapshots are not kept.
        """
        full = [group for group in groups if group.visible_tokens is None]
        windowed = [group for group in groups if group.visible_tokens is not None]
        elements = sum(
            layout.num_group_layers(i) * layout.groups[i].token_elements()
            for i in layout.windows
        )
        return cls(
            FullManager(full) if full else None,
            WindowManager(windowed, elements) if windowed else None,
            StateManager(block_size, keeper) if layout.states else None,
        )


def make_groups(
    layout: CacheLayout,
    allocators: Sequence[BlockAllocator],
    grow: GrowPool | None,
    max_slice: int,
) -> tuple[BlockGroup, ...]:
    """Return the attention groups of a layout.

    Args:
        layout: The layout. A layout of recurrent layers alone has one group, without a pool.
        allocators: One per group, all with the same block size.
        grow: Enlarges a group's pool; None for pools of fixed size.
        max_slice: Most tokens of one sequence that a step computes.

    Raises:
        ValueError: The allocators do not fit the layout.
    """
    sizes = {allocator.block_size for allocator in allocators}
    if len(allocators) != max(1, len(layout.groups)) or len(sizes) != 1:
        raise ValueError(
            f"{len(layout.groups)} groups need one allocator each (without a group there "
            "is one) and one block size, "
            f"got {len(allocators)} allocators with block sizes {sorted(sizes)}"
        )
    (size,) = sizes
    if size % layout.block_size_multiple:
        raise ValueError(
            f"the block size must be a multiple of {layout.block_size_multiple}, got {size}"
        )
    pairs = zip(allocators, layout.groups or (None,), strict=True)
    return tuple(
        BlockGroup(i, allocator, grow, spec, Resident.of(spec, size, max_slice))
        for i, (allocator, spec) in enumerate(pairs)
    )
