"""Bytes: who holds how many of them, and how large the pools may be."""

from __future__ import annotations

import threading

import attrs

from ..contract.cache_spec import CacheLayout
from ..errors import CacheMisuseError, MemoryBudgetError
from .block_table import blocks_for

MIB = 1 << 20
DEFAULT_POOL_BYTES = 2048 * MIB
MIN_BLOCKS = 2
"""The null block and one to use."""


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
class PoolPlan:
    """The sizes of a model's pools, the same number of blocks in every group.

    Attributes:
        initial_blocks: Blocks at load, the null block included.
        max_blocks: Blocks that growth may reach.
        effective_window_tokens: The longest sequence that the largest pool holds.
        state_bytes: What the recurrent states of all running sequences take beside the pools.
    """

    initial_blocks: int
    max_blocks: int
    effective_window_tokens: int
    state_bytes: int = 0

    @property
    def dynamic(self) -> bool:
        """Whether the pools grow on demand."""
        return self.initial_blocks < self.max_blocks


def plan_pools(
    layout: CacheLayout,
    *,
    block_size: int,
    itemsize: int,
    max_context_tokens: int,
    max_num_seqs: int,
    max_bytes: int | None = None,
    initial_bytes: int | None = None,
    available_bytes: int | None = None,
) -> PoolPlan:
    """Return how many blocks every group of `layout` gets.

    Args:
        layout: Its groups are all full attention, so each needs the same blocks a token. If
            it has none, blocks cost nothing and there are as many as sequences can fill.
        block_size: Tokens of a block.
        itemsize: Bytes of an element.
        max_context_tokens: The longest sequence that the model takes.
        max_num_seqs: Sequences that run at once; more blocks than they can fill are not made.
        max_bytes: Most that all pools may take; None means 2048 MiB.
        initial_bytes: What they take at load; None means the most.
        available_bytes: What the device has left for pools and recurrent states; None means
            that it is not known.

    Raises:
        MemoryBudgetError: There is no room for one block beside the null block, or none for
            the states of `max_num_seqs` sequences.
    """
    state_bytes = max_num_seqs * layout.state_bytes(itemsize)
    if available_bytes is not None:
        available_bytes = _beside_states(available_bytes, state_bytes, max_num_seqs)
    block_bytes = sum(
        layout.block_bytes(group, block_size, itemsize) for group in range(len(layout.groups))
    )
    max_bytes = DEFAULT_POOL_BYTES if max_bytes is None else max_bytes
    max_bytes = max_bytes if available_bytes is None else min(max_bytes, available_bytes)
    useful = 1 + max_num_seqs * blocks_for(max_context_tokens, block_size)
    max_blocks = min(_blocks_in(max_bytes, block_bytes), useful) if block_bytes else useful
    initial = max_blocks
    if initial_bytes is not None and block_bytes:
        initial = min(_blocks_in(initial_bytes, block_bytes), max_blocks)
    window = min(max_context_tokens, (max_blocks - 1) * block_size)
    return PoolPlan(initial, max_blocks, window, state_bytes)


def _beside_states(available_bytes: int, state_bytes: int, max_num_seqs: int) -> int:
    if state_bytes > available_bytes:
        raise MemoryBudgetError(
            f"the recurrent states of {max_num_seqs} sequences take {_ceil_mib(state_bytes)} "
            f"MiB, {_floor_mib(available_bytes)} MiB are left: lower max_num_seqs"
        )
    return available_bytes - state_bytes


def _blocks_in(num_bytes: int, block_bytes: int) -> int:
    blocks = num_bytes // block_bytes
    if blocks < MIN_BLOCKS:
        raise MemoryBudgetError(
            f"the cache needs at least {_ceil_mib(MIN_BLOCKS * block_bytes)} MiB (one block "
            f"and the null block), {_floor_mib(num_bytes)} MiB are allowed"
        )
    return blocks
