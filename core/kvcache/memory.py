"""Bytes: who holds how many of them, and how large the pools may be."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence

import attrs

from ..contract.cache_spec import CacheLayout
from ..contract.layer_spec import AttentionSpec
from ..errors import CacheMisuseError, MemoryBudgetError
from .block_table import blocks_for

MIB = 1 << 20
DEFAULT_POOL_BYTES = 2048 * MIB
MIN_BLOCKS = 2
"""The null block and one to use."""
KEPT_WINDOWS = 4
"""Windows beside its own that a sequence can make use of: boundaries that it has passed."""


def _floor_mib(num_bytes: int) -> int:
    return num_bytes // MIB


def _ceil_mib(num_bytes: int) -> int:
    return -(-num_bytes // MIB)


class MemoryCoordinator:
    """The process's account of weights and pools, under one cap. Any thread may call it.

    Attributes:
        limit_bytes: The cap; None means that the account is kept and nothing is refused.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._held: dict[str, int] = {}  # name -> bytes
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """Bytes registered."""
        with self._lock:
            return sum(self._held.values())

    def register(self, name: str, num_bytes: int) -> None:
        """Enter a new holder.

        Raises:
            MemoryBudgetError: The cap would be passed; nothing was changed.
            CacheMisuseError: The name is taken.
        """
        with self._lock:
            if name in self._held:
                raise CacheMisuseError(f"register {name!r}", "it is registered: update it")
            self._set(name, num_bytes)

    def update(self, name: str, num_bytes: int) -> None:
        """Change what a holder holds; less is always allowed.

        Raises:
            MemoryBudgetError: The cap would be passed; nothing was changed.
            CacheMisuseError: The name is unknown.
        """
        with self._lock:
            if name not in self._held:
                raise CacheMisuseError(f"update {name!r}", "it is not registered")
            self._set(name, num_bytes)

    def release(self, name: str) -> None:
        """Strike a holder off.

        Raises:
            CacheMisuseError: The name is unknown.
        """
        with self._lock:
            if self._held.pop(name, None) is None:
                raise CacheMisuseError(f"release {name!r}", "it is not registered")

    def _set(self, name: str, num_bytes: int) -> None:
        before = self._held.get(name, 0)
        others = sum(self._held.values()) - before
        if (
            self.limit_bytes is not None
            and num_bytes > before
            and others + num_bytes > self.limit_bytes
        ):
            held = ", ".join(f"{n} {_ceil_mib(b)} MiB" for n, b in self._held.items())
            raise MemoryBudgetError(
                f"{name} asks for {_ceil_mib(num_bytes)} MiB of a limit of "
                f"{_floor_mib(self.limit_bytes)} MiB (registered: {held or 'nothing'})"
            )
        self._held[name] = num_bytes


def grown_size(current: int, needed: int, maximum: int) -> int:
    """Return the blocks of a pool after growth: doubled, or more if more is needed.

    Args:
        current: Blocks now.
        needed: Blocks that a reservation lacks.
        maximum: Blocks that the pool may have.
    """
    return min(maximum, max(2 * current, current + needed))


@attrs.frozen
class Resident:
    """Blocks of a group with a window that one sequence holds, however long it is.

    A window, the tokens that steps compute at once, and one block since neither begins at
    a block's first token.

    Attributes:
        most: With the slice of a prefill that is being computed and the next one.
        least: With one of them: blocks that the next one can do without are given back
            before they could be published.
    """

    most: int
    least: int

    @classmethod
    def of(cls, spec: AttentionSpec | None, block_size: int, max_slice: int) -> Resident | None:
        """Return what a group needs; None if that grows with the sequence.

        Args:
            spec: What the group's layers keep.
            block_size: Tokens of a block.
            max_slice: Tokens of one sequence that a step computes, at most.
        """
        if spec is None or spec.visible_tokens is None:
            return None
        most, least = (
            blocks_for(spec.visible_tokens - 1 + tokens, block_size) + 1
            for tokens in (2 * max_slice, max_slice)
        )
        return cls(most, least)


def _largest_slice(spec: AttentionSpec, num_blocks: int, block_size: int) -> int | None:
    """Return the tokens that a step may compute of a sequence alone in its pool, or None."""
    if spec.visible_tokens is None:
        return None
    usable = num_blocks - 1  # and one that is not used in full, as neither end is aligned
    tokens = (usable - 1) * block_size - (spec.visible_tokens - 1)
    return max(block_size, tokens // block_size * block_size)


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
        state_bytes: What the recurrent states of all running sequences take beside the pools.
        primary: The layout's primary group.
        max_slice: Tokens of one sequence that a step may compute, so that the largest pools
            hold them beside its windows; None for no bound.
    """

    groups: tuple[GroupPlan, ...] = attrs.field(converter=tuple)
    effective_window_tokens: int
    state_bytes: int = 0
    primary: int = 0
    max_slice: int | None = None

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
    def of(
        cls,
        spec: AttentionSpec,
        block_bytes: int,
        *,
        block_size: int,
        context_blocks: int,
        max_num_seqs: int,
        max_slice: int,
    ) -> _Demand:
        """Return the demand of a group."""
        resident = Resident.of(spec, block_size, max_slice)
        everything = 1 + max_num_seqs * context_blocks
        if spec.visible_tokens is None or resident is None:
            minimum = context_blocks + max_num_seqs
            return cls(block_bytes, MIN_BLOCKS, minimum, everything, None)
        one = min(resident.most, context_blocks)
        least = min(blocks_for(spec.visible_tokens - 1, block_size) + 2, context_blocks)
        kept = KEPT_WINDOWS * blocks_for(spec.visible_tokens, block_size)
        useful = min(everything, 1 + max_num_seqs * (one + kept))
        return cls(block_bytes, 1 + least, one + max_num_seqs, useful, resident)


def plan_pools(
    layout: CacheLayout,
    *,
    block_size: int,
    itemsize: int,
    max_context_tokens: int,
    max_num_seqs: int,
    max_slice: int = 1,
    max_bytes: int | None = None,
    initial_bytes: int | None = None,
    available_bytes: int | None = None,
) -> PoolPlan:
    """Return how many blocks every group of `layout` gets.

    The budget is one for all groups. First each gets the least that is of use, then what one
    sequence of the longest context takes and a block for each other one, then what sequences
    can fill.

    Args:
        layout: If it has no group, blocks cost nothing and there are as many as sequences
            can fill.
        block_size: Tokens of a block.
        itemsize: Bytes of an element.
        max_context_tokens: The longest sequence that the model takes.
        max_num_seqs: Sequences that run at once; more blocks than they can fill are not made.
        max_slice: Tokens of one sequence that a step computes, at most.
        max_bytes: Most that all pools may take; None means 2048 MiB, or with windows what one
            sequence of the longest context takes if that is more.
        initial_bytes: What they take at load; None means the most.
        available_bytes: What the device has left for pools and recurrent states; None means
            that it is not known.

    Raises:
        MemoryBudgetError: There is no room for one block beside the null block and a whole
            window where there is one, or none for the states of `max_num_seqs` sequences.
    """
    state_bytes = max_num_seqs * layout.state_bytes(itemsize)
    if available_bytes is not None:
        available_bytes = _beside_states(available_bytes, state_bytes, max_num_seqs)
    context_blocks = blocks_for(max_context_tokens, block_size)
    if not layout.groups:
        useful = 1 + max_num_seqs * context_blocks
        return PoolPlan([GroupPlan(useful, useful)], max_context_tokens, state_bytes)
    demands = [
        _Demand.of(
            spec,
            layout.block_bytes(group, block_size, itemsize),
            block_size=block_size,
            context_blocks=context_blocks,
            max_num_seqs=max_num_seqs,
            max_slice=max_slice,
        )
        for group, spec in enumerate(layout.groups)
    ]
    if max_bytes is None:
        max_bytes = _automatic_bytes(demands)
    max_bytes = max_bytes if available_bytes is None else min(max_bytes, available_bytes)
    largest = _divide(max_bytes, demands)
    initial = largest if initial_bytes is None else _divide(initial_bytes, demands)
    groups = [GroupPlan(min(a, b), b) for a, b in zip(initial, largest, strict=True)]
    bounds = [
        (size - 1) * block_size
        for size, demand in zip(largest, demands, strict=True)
        if demand.resident is None
    ]
    window = min([max_context_tokens, *bounds])
    slices = [
        _largest_slice(spec, size, block_size)
        for spec, size in zip(layout.groups, largest, strict=True)
    ]
    fits = min((tokens for tokens in slices if tokens is not None), default=None)
    return PoolPlan(groups, window, state_bytes, layout.primary, fits)


def _automatic_bytes(demands: Sequence[_Demand]) -> int:
    windows = any(demand.resident is not None for demand in demands)
    least = sum(demand.minimum * demand.block_bytes for demand in demands)
    return max(DEFAULT_POOL_BYTES, least) if windows else DEFAULT_POOL_BYTES


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
            f"the cache needs at least {_ceil_mib(cost(0))} MiB (one block and the null "
            f"block, and a whole window where there is one), {_floor_mib(num_bytes)} MiB are "
            "allowed"
        )
    if num_bytes < cost(top):
        return at(bisect.bisect_right(range(top), num_bytes, key=cost) - 1)
    spare = [max(0, d.useful - n) for n, d in zip(at(top), demands, strict=True)]
    span = sum(n * d.block_bytes for n, d in zip(spare, demands, strict=True))
    share = min(num_bytes - cost(top), span)
    more = [n * share // max(1, span) for n in spare]
    return [n + extra for n, extra in zip(at(top), more, strict=True)]


def _beside_states(available_bytes: int, state_bytes: int, max_num_seqs: int) -> int:
    if state_bytes > available_bytes:
        raise MemoryBudgetError(
            f"the recurrent states of {max_num_seqs} sequences take {_ceil_mib(state_bytes)} "
            f"MiB, {_floor_mib(available_bytes)} MiB are left: lower max_num_seqs"
        )
    return available_bytes - state_bytes
