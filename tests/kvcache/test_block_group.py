from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from neve.contract.layer_spec import FullAttention, SlidingWindow
from neve.errors import CacheExhaustedError, MemoryBudgetError
from neve.kvcache.block import Block
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_group import BlockGroup, grown_size
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.resident import Resident
from neve.kvcache.window_manager import WindowManager


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
) -> BlockGroup:
    """Return group 3, with `cached` in its prefix table and no reference to it."""
    allocator = BlockAllocator(num_blocks, 4, max_num_blocks)
    group = BlockGroup(3, allocator, None if pool is None else pool.grow)
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


# -- windows -----------------------------------------------------------------------------

MakeChain = Callable[..., PrefixChain]


def make_window(
    window: int | None, chain: PrefixChain, held: Sequence[int], *, max_slice: int = 8
) -> BlockGroup:
    """Return a group in whose prefix table the chain's blocks `held` are."""
    spec = FullAttention(1, 8) if window is None else SlidingWindow(window, 1, 8)
    allocator = BlockAllocator(40, chain.block_size)
    resident = Resident.of(spec, chain.block_size, max_slice)
    group = BlockGroup(1, allocator, None, spec, resident)
    for index in held:
        blocks = allocator.allocate(1)
        assert group.publish(blocks[0], chain, index)
        allocator.free(blocks)
    return group


@pytest.mark.parametrize(
    ("window", "num_tokens", "first"),
    [
        (None, 100, 0),
        (8, 0, 0),
        (8, 10, 0),
        (8, 11, 1),
        (8, 100, 23),
        (1, 100, 25),
        (1, 3, 0),
        (2, 100, 24),
        (5, 100, 24),
        (6, 100, 23),
        (100, 99, 0),
    ],
)
def test_the_first_block_that_the_next_token_sees(
    window: int | None, num_tokens: int, first: int, make_chain: MakeChain
) -> None:
    """GR-3: the block of the oldest visible position, absolute."""
    assert make_window(window, make_chain([]), []).first_needed(num_tokens) == first


def test_resident_blocks_are_those_of_a_window_and_its_slices(make_chain: MakeChain) -> None:
    """GR-3: a sequence holds `ceil((window - 1 + in flight) / S) + 1` blocks, or all it has."""
    group = make_window(9, make_chain([]), [], max_slice=6)
    full = make_window(None, make_chain([]), [])

    assert [group.num_resident(n) for n in (0, 1, 8, 20, 21, 1000)] == [0, 1, 2, 5, 6, 6]
    assert [full.num_resident(n) for n in (0, 1, 8, 1000)] == [0, 1, 2, 250]
    assert (group.visible_tokens, full.visible_tokens) == (9, None)


def test_null_blocks_are_nobodys(make_chain: MakeChain) -> None:
    """GR-3: an entry that a window has moved past counts as no block that is held."""
    chain = make_chain(range(24))
    group = make_window(8, chain, [3, 4, 5])
    hit = find(group, chain, 6)

    assert hit[:4] == [group.allocator.null] * 4
    assert [block.hash for block in group.real_blocks(hit)] == chain.hashes[4:]
    assert group.num_missing(hit, 1000) == group.num_resident(1000) - 2
    assert group.available_beside(hit) == group.num_available - 2


def find(group: BlockGroup, chain: PrefixChain, limit: int) -> list[Block]:
    """Return the entries that the manager of a window finds."""
    return WindowManager([group], 8).find(chain, limit).blocks[group.index]


def longest_naively(group: BlockGroup, chain: PrefixChain, held: set[int], limit: int) -> int:
    """Return the deepest boundary at which every block that the next token sees is held."""
    size = chain.block_size
    fits = [
        n
        for n in range(1, limit + 1)
        if held.issuperset(range(group.first_needed(n * size), n))
    ]
    return max(fits, default=0)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    window=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 12, 13, 40]),
    held=st.sets(st.integers(0, 9)),
    limit=st.integers(0, 10),
)
def test_the_deepest_boundary_whose_window_is_held(
    window: int, held: set[int], limit: int, make_chain: MakeChain
) -> None:
    """GR-7: whatever blocks are left, the answer is the deepest boundary they suffice for."""
    chain = make_chain(range(40))
    group = make_window(window, chain, sorted(held))
    found = find(group, chain, limit)
    first = group.first_needed(len(found) * 4)

    assert len(found) == longest_naively(group, chain, held, limit)
    assert [block.hash for block in found[first:]] == chain.hashes[first : len(found)]
    assert all(b is group.allocator.null for b in found[: min(first, len(found))])


def test_a_collision_in_a_window_is_a_hole(make_chain: MakeChain) -> None:
    """KV-3: a block of equal hash and other content backs no boundary."""
    chain, other = make_chain(range(24)), make_chain(range(50, 74))
    group = make_window(8, chain, range(6))
    other.hashes[4] = chain.hashes[4]
    other.hashes[5] = chain.hashes[5]

    assert find(group, other, 6) == []


def test_an_expired_block_counts_as_published(make_chain: MakeChain) -> None:
    """GR-3: a restored prefix is published behind its window as well, with nothing to enter."""
    chain = make_chain(range(8))
    group = make_window(4, chain, [])

    assert group.publish(group.allocator.null, chain, 0)
    assert group.allocator.num_published == 0


@pytest.mark.parametrize(
    ("window", "num_blocks", "bound"),
    [(None, 10, 36), (8, 5, 16), (8, 6, None), (8, 40, None), (1, 2, 4)],
)
def test_a_pool_that_holds_a_window_bounds_no_sequence(
    window: int | None, num_blocks: int, bound: int | None, make_chain: MakeChain
) -> None:
    """GR-4: a window and one slice are enough for any length; less bounds a sequence."""
    spec = FullAttention(1, 8) if window is None else SlidingWindow(window, 1, 8)
    resident = Resident.of(spec, 4, 8)
    group = BlockGroup(0, BlockAllocator(num_blocks, 4), None, spec, resident)

    assert group.max_tokens == bound


@pytest.mark.parametrize(
    ("current", "needed", "maximum", "expected"),
    [(10, 1, 100, 20), (10, 15, 100, 25), (10, 15, 22, 22), (10, 1, 10, 10)],
)
def test_growth_rule(current: int, needed: int, maximum: int, expected: int) -> None:
    """KV-6: min(max, max(2*current, current + needed))."""
    assert grown_size(current, needed, maximum) == expected
