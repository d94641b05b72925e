"""How large the pools may be: a budget of bytes, divided among the groups of a layout."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import attrs

from ..contract.cache_spec import CacheLayout
from ..contract.layer_spec import AttentionSpec
from ..errors import MemoryBudgetError
from .block_table import blocks_for
from .memory import MIB, ceil_mib, floor_mib
from .resident import Resident, largest_slice

DEFAULT_POOL_BYTES = 2048 * MIB
MIN_BLOCKS = 2
"""The null block and one to use."""
KEPT_WINDOWS = 4
"""Windows beside its own that a sequence can make use of: boundaries that it has passed."""
MAX_SNAPSHOT_SHARE = 2
"""Snapshots get at most one part in so many of the memory beside running states."""


@attrs.frozen
class GroupPlan:
    """The size of one group's pool.

    Attributes:
        initial_blocks: Blocks at load, the null block included.
        max_blocks: Blocks that growth may reach.
    """

    initial_blocks: int
    max_blocks: int


@attrs.frozen
class PoolPlan:
    """The sizes of a model's pools.

    Attributes:
        groups: One a group; one for a layout without a group.
        effective_window_tokens: The longest sequence that the largest pools hold.
        state_bytes: Bytes of the recurrent states of all running sequences.
        primary: The layout's primary group.
        max_slice: Tokens of one sequence that a step may compute, so that the largest pools
            hold them beside its windows; None for no bound.
        snapshot_bytes: Bytes that the pools leave to kept snapshots of recurrent state.
    """

    groups: tuple[GroupPlan, ...] = attrs.field(converter=tuple)
    effective_window_tokens: int
    state_bytes: int = 0
    primary: int = 0
    max_slice: int | None = None
    snapshot_bytes: int = 0

    @property
    def initial_blocks(self) -> int:
        """Blocks of the primary group at load, the null block included."""
        return self.groups[self.primary].initial_blocks

    @property
    def max_blocks(self) -> int:
        """Blocks that the primary group's growth may reach."""
        return self.groups[self.primary].max_blocks

    @property
    def dynamic(self) -> bool:
        """Whether the pools grow on demand."""
        return any(group.initial_blocks < group.max_blocks for group in self.groups)


@attrs.frozen(kw_only=True)
class Sizing:
    """All that decides how many blocks every group gets.

    Attributes:
        layout: The cache layout. If it has no group, blocks cost nothing and there are as
            many as sequences can fill.
        block_size: Tokens of a block.
        itemsize: Bytes of an element.
        max_context_tokens: The longest sequence that the model takes.
        max_num_seqs: Sequences that run at once; more blocks than they can fill are not made.
        max_slice: Tokens of one sequence that a step computes, at most.
        max_bytes: Most that all pools may take; None means 2048 MiB, or with windows the
            bytes of one sequence of the longest context if that is more.
        initial_bytes: Bytes of the pools at load; None means the most.
        available_bytes: Bytes that are left for pools and recurrent states; None if nobody
            knows.
        snapshot_bytes: Bytes that kept snapshots of recurrent state may take.
    """

    layout: CacheLayout
    block_size: int
    itemsize: int
    max_context_tokens: int
    max_num_seqs: int
    max_slice: int = 1
    max_bytes: int | None = None
    initial_bytes: int | None = None
    available_bytes: int | None = None
    snapshot_bytes: int = 0

    @property
    def state_bytes(self) -> int:
        """Bytes of the recurrent states of all running sequences."""
        return self.max_num_seqs * self.layout.state_bytes(self.itemsize)

    @property
    def context_blocks(self) -> int:
        """Blocks of a sequence of the longest context."""
        return blocks_for(self.max_context_tokens, self.block_size)

    @property
    def useful_blocks(self) -> int:
        """Blocks that all running sequences can fill, and the null block."""
        return 1 + self.max_num_seqs * self.context_blocks

    def beside_states(self) -> tuple[int | None, int]:
        """Return the bytes left for the pools, None if nobody knows, and those for snapshots.

        Raises:
            MemoryBudgetError: The states of all running sequences take more than there is.
        """
        if self.available_bytes is None:
            return None, self.snapshot_bytes
        left = self.available_bytes - self.state_bytes
        if left < 0:
            raise MemoryBudgetError(
                f"the recurrent states of {self.max_num_seqs} sequences take "
                f"{ceil_mib(self.state_bytes)} MiB, {floor_mib(self.available_bytes)} MiB are "
                "left: lower max_num_seqs"
            )
        snapshots = min(self.snapshot_bytes, left // MAX_SNAPSHOT_SHARE)
        return left - snapshots, snapshots


@attrs.frozen
class _Demand:
    """How many blocks a group can make use of.

    Attributes:
        block_bytes: Of one block.
        floor: Less is of no use to anybody.
        minimum: One sequence of the model's full context, and a block for each other one.
        useful: More than sequences can fill is not made.
        resident: Blocks that one sequence holds; None if that grows with its length.
    """

    block_bytes: int
    floor: int
    minimum: int
    useful: int
    resident: Resident | None

    @classmethod
    def of(cls, sizing: Sizing, group: int, spec: AttentionSpec) -> _Demand:
        """Return the demand of a group."""
        size, context = sizing.block_size, sizing.context_blocks
        block_bytes = sizing.layout.block_bytes(group, size, sizing.itemsize)
        resident = Resident.of(spec, size, sizing.max_slice)
        everything, others = sizing.useful_blocks, sizing.max_num_seqs
        if spec.visible_tokens is None or resident is None:
            return cls(block_bytes, MIN_BLOCKS, context + others, everything, None)
        one = min(resident.most, context)
        least = min(blocks_for(spec.visible_tokens - 1, size) + 2, context)
        kept = KEPT_WINDOWS * blocks_for(spec.visible_tokens, size)
        useful = min(everything, 1 + others * (one + kept))
        return cls(block_bytes, 1 + least, one + others, useful, resident)


def plan_pools(sizing: Sizing) -> PoolPlan:
    """Return how many blocks every group of a layout gets.

    The budget is one for all groups. First each gets the least that is of use, then the blocks
    of one sequence of the longest context and a block for each other one, then what sequences
    can fill.

    Raises:
        MemoryBudgetError: There is no room for one block beside the null block and a whole
            window where there is one, or none for the states of `max_num_seqs` sequences.
    """
    available, snapshots = sizing.beside_states()
    context, layout = sizing.max_context_tokens, sizing.layout
    if not layout.groups:
        group = GroupPlan(sizing.useful_blocks, sizing.useful_blocks)
        return PoolPlan([group], context, sizing.state_bytes, snapshot_bytes=snapshots)
    demands = [_Demand.of(sizing, group, spec) for group, spec in enumerate(layout.groups)]
    largest = _divide(_max_bytes(sizing, demands, available), demands)
    return PoolPlan(
        _groups(sizing, demands, largest),
        _longest_sequence(sizing, demands, largest),
        sizing.state_bytes,
        layout.primary,
        _longest_slice(sizing, largest),
        snapshots,
    )


def _max_bytes(sizing: Sizing, demands: Sequence[_Demand], available: int | None) -> int:
    """Return the bytes that all pools may take."""
    asked = sizing.max_bytes
    most = _automatic_bytes(demands) if asked is None else asked
    return most if available is None else min(most, available)


def _automatic_bytes(demands: Sequence[_Demand]) -> int:
    windows = any(demand.resident is not None for demand in demands)
    least = sum(demand.minimum * demand.block_bytes for demand in demands)
    return max(DEFAULT_POOL_BYTES, least) if windows else DEFAULT_POOL_BYTES


def _groups(
    sizing: Sizing, demands: Sequence[_Demand], largest: Sequence[int]
) -> list[GroupPlan]:
    asked = sizing.initial_bytes
    initial = largest if asked is None else _divide(asked, demands)
    return [GroupPlan(min(a, b), b) for a, b in zip(initial, largest, strict=True)]


def _longest_sequence(
    sizing: Sizing, demands: Sequence[_Demand], largest: Sequence[int]
) -> int:
    """Return the tokens of the longest sequence that the largest pools hold."""
    bounds = [
        (size - 1) * sizing.block_size
        for size, demand in zip(largest, demands, strict=True)
        if demand.resident is None
    ]
    return min([sizing.max_context_tokens, *bounds])


def _longest_slice(sizing: Sizing, largest: Sequence[int]) -> int | None:
    """Return the tokens that a step may compute of a sequence, None for no bound."""
    slices = [
        largest_slice(spec, size, sizing.block_size)
        for spec, size in zip(sizing.layout.groups, largest, strict=True)
    ]
    return min((tokens for tokens in slices if tokens is not None), default=None)


def _divide(num_bytes: int, demands: Sequence[_Demand]) -> list[int]:
    """Return each group's blocks for a budget of all groups.

    Up to the minimum all get the same number, as far as they can use it: a window takes no
    more blocks than the tokens that full attention has room for.
    """

    def at(level: int) -> list[int]:
        return [min(max(d.floor, level), max(d.floor, d.minimum)) for d in demands]

    def cost(level: int) -> int:
        return sum(n * d.block_bytes for n, d in zip(at(level), demands, strict=True))

    top = max(max(demand.floor, demand.minimum) for demand in demands)
    if num_bytes < cost(0):
        raise MemoryBudgetError(
            f"the cache needs at least {ceil_mib(cost(0))} MiB (one block and the null "
            f"block, and a whole window where there is one), {floor_mib(num_bytes)} MiB are "
            "allowed"
        )
    if num_bytes < cost(top):
        return at(bisect.bisect_right(range(top), num_bytes, key=cost) - 1)
    spare = [max(0, d.useful - n) for n, d in zip(at(top), demands, strict=True)]
    span = sum(n * d.block_bytes for n, d in zip(spare, demands, strict=True))
    share = min(num_bytes - cost(top), span)
    more = [n * share // max(1, span) for n in spare]
    return [n + extra for n, extra in zip(at(top), more, strict=True)]
