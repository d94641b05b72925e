from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from neve.errors import CacheExhaustedError, MemoryBudgetError
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.group_manager import GroupManager


class Pool:
    """A physical pool that notes its growth, and refuses it when memory is tight."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.tight = False

    def grow(self, group: int, num_blocks: int) -> None:
        self.calls.append((group, num_blocks))
        if self.tight:
            raise MemoryBudgetError("no room")


def make_group(
    num_blocks: int, max_num_blocks: int, pool: Pool | None, cached: PrefixChain | None = None
) -> GroupManager:
    """Return group 3, with `cached` in its prefix table and no reference to it."""
    allocator = BlockAllocator(num_blocks, 4, max_num_blocks)
    group = GroupManager(3, allocator, None if pool is None else pool.grow)
    if cached is not None:
        blocks = allocator.allocate(len(cached.hashes))
        for index, block in enumerate(blocks):
            group.publish(block, cached, index)
        allocator.free(blocks)
    return group


def test_no_growth_without_a_shortage(make_chain: Callable[..., PrefixChain]) -> None:
    """KV-6: what free and evictable blocks can serve does not make the pool grow."""
    pool = Pool()
    group = make_group(6, 20, pool, make_chain(range(8)))
    group.make_room(5)

    assert pool.calls == []
    assert group.num_available == 5 + 14


def test_growth_spares_the_cached_prefixes(make_chain: Callable[..., PrefixChain]) -> None:
    """KV-6: the pool grows by so much that nothing is evicted for the reservation."""
    pool = Pool()
    group = make_group(6, 20, pool, make_chain(range(8)))
    group.make_room(7)
    group.allocator.allocate(7)

    assert pool.calls == [(3, 13)]
    assert (group.allocator.num_blocks, group.growths, group.allocator.evictions) == (13, 1, 0)


def test_growth_doubles_at_least() -> None:
    """KV-6: a small shortage doubles the pool."""
    pool = Pool()
    group = make_group(6, 20, pool)
    group.allocator.allocate(5)
    group.make_room(1)

    assert pool.calls == [(3, 12)]


def test_eviction_serves_what_the_maximum_leaves_over(
    make_chain: Callable[..., PrefixChain],
) -> None:
    """KV-6: at the maximum growth is not enough, and cached blocks make up the rest."""
    pool = Pool()
    group = make_group(6, 8, pool, make_chain(range(8)))
    group.make_room(6)
    group.allocator.allocate(6)

    assert pool.calls == [(3, 8)]
    assert group.allocator.evictions == 1


def test_exhaustion_is_a_typed_error() -> None:
    """KV-6: when growth and eviction do not suffice, the error says what could be had."""
    pool = Pool()
    group = make_group(6, 8, pool)

    with pytest.raises(CacheExhaustedError) as caught:
        group.make_room(8)
    assert (caught.value.needed, caught.value.available) == (8, 7)
    with pytest.raises(CacheExhaustedError):
        group.make_room(8)
    assert pool.calls == [(3, 8)], "at the maximum the pool is not asked"


def test_a_static_pool_never_grows() -> None:
    """KV-6: without a port the maximum is the size."""
    group = make_group(6, 20, None)

    assert (group.num_available, group.num_growable, group.max_usable_blocks) == (5, 0, 5)
    with pytest.raises(CacheExhaustedError):
        group.make_room(6)


def test_a_refused_growth_falls_through(make_chain: Callable[..., PrefixChain]) -> None:
    """KV-6: memory's refusal is counted, logged once, and changes nothing."""
    pool = Pool()
    pool.tight = True
    group = make_group(6, 20, pool, make_chain(range(8)))
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(CacheExhaustedError):
                group.make_room(6)

    assert group.stats().growth_refusals == 2
    assert (group.allocator.num_blocks, group.growths) == (6, 0)
    assert [entry["event"] for entry in logs] == ["kvcache.growth.refused"]


def test_after_a_refusal_growth_is_not_counted_on() -> None:
    """KV-6: refused blocks are not available until growth succeeds or may be tried anew."""
    pool = Pool()
    pool.tight = True
    group = make_group(6, 20, pool)
    with pytest.raises(CacheExhaustedError):
        group.make_room(6)

    assert (group.num_available, group.max_usable_blocks) == (5, 19)
    group.forget_refusal()
    assert group.num_available == 19
    with pytest.raises(CacheExhaustedError):
        group.make_room(6)
    pool.tight = False
    group.make_room(6)
    assert group.num_available == 19


def test_a_duplicate_continues_the_chain(make_chain: Callable[..., PrefixChain]) -> None:
    """KV-3: a recomputed block counts as published if the owner's identity is equal."""
    chain, other = make_chain(range(4)), make_chain(range(50, 54))
    group = make_group(6, 6, None)
    first, second, third = group.allocator.allocate(3)
    other.hashes[0] = chain.hashes[0]

    assert group.publish(first, chain, 0)
    assert group.publish(second, chain, 0)
    assert not group.publish(third, other, 0), "a collision"
    assert (second.hash, third.hash) == (None, None)
