from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from neve.errors import CacheExhaustedError, CacheMisuseError
from neve.ids import BlockHash
from neve.kvcache.block import Block
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_identity import PrefixChain

MakeChain = Callable[..., PrefixChain]


def ids(blocks: Sequence[Block]) -> list[int]:
    return [block.id for block in blocks]


def publish_all(
    allocator: BlockAllocator, blocks: Sequence[Block], chain: PrefixChain
) -> list[bool]:
    return [
        allocator.publish(block, identity, block_hash)
        for block, identity, block_hash in zip(
            blocks, chain.identities, chain.hashes, strict=True
        )
    ]


def cached_chain(allocator: BlockAllocator, chain: PrefixChain) -> list[Block]:
    """Allocate, publish and free a chain, so that it is cached."""
    blocks = allocator.allocate(len(chain.hashes))
    assert all(publish_all(allocator, blocks, chain))
    allocator.free(blocks)
    return blocks


def test_blocks_are_handed_out_in_order_and_never_the_null_block() -> None:
    """KV-1: block 0 is the null block; the others come first in, first out."""
    allocator = BlockAllocator(5, 4)

    assert ids(allocator.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(CacheExhaustedError):
        allocator.allocate(1)


def test_the_tail_is_freed_first() -> None:
    """KV-1: unpublished blocks go behind the free queue, the last one first."""
    allocator = BlockAllocator(6, 4)
    blocks = allocator.allocate(3)
    allocator.free(blocks)

    assert ids(allocator.allocate(5)) == [4, 5, 3, 2, 1]


def test_allocation_is_all_or_nothing() -> None:
    """KV-1: a shortage changes nothing and says what could be had."""
    allocator = BlockAllocator(4, 4)
    allocator.allocate(1)

    with pytest.raises(CacheExhaustedError) as caught:
        allocator.allocate(3)
    assert (caught.value.needed, caught.value.available) == (3, 2)
    assert (allocator.num_free, allocator.num_live, allocator.evictions) == (2, 1, 0)


def test_the_last_reference_frees_the_block() -> None:
    """KV-2: a shared block stays live until its last holder lets go."""
    allocator = BlockAllocator(4, 4)
    blocks = allocator.allocate(1)
    allocator.share(blocks)
    allocator.free(blocks)

    assert (allocator.num_live, allocator.num_free) == (1, 2)
    allocator.free(blocks)
    assert (allocator.num_live, allocator.num_free) == (0, 3)


def test_a_published_block_outlives_its_holders(make_chain: MakeChain) -> None:
    """KV-1: without references a published block is cached: found, evictable, revivable."""
    allocator = BlockAllocator(4, 4)
    chain = make_chain(range(8))
    blocks = cached_chain(allocator, chain)

    assert (allocator.num_free, allocator.num_evictable, allocator.num_live) == (1, 2, 0)
    assert allocator.lookup(chain.hashes[1], chain.identities[1]) is blocks[1]
    assert allocator.num_evictable == 2, "a lookup takes no reference"
    allocator.share(blocks)
    assert (allocator.num_evictable, allocator.num_live) == (0, 2)
    allocator.check()


def test_free_blocks_go_before_cached_ones(make_chain: MakeChain) -> None:
    """KV-1: nothing is evicted while a block is free."""
    allocator = BlockAllocator(5, 4)
    cached_chain(allocator, make_chain(range(8)))

    assert ids(allocator.allocate(2)) == [3, 4]
    assert allocator.evictions == 0


def test_leaves_are_evicted_before_their_ancestors(make_chain: MakeChain) -> None:
    """KV-4: a chain is eaten from its tail, the least recently released chain first."""
    allocator = BlockAllocator(7, 4)
    cached_chain(allocator, make_chain(range(12)))  # blocks 1, 2, 3
    cached_chain(allocator, make_chain(range(50, 62)))  # blocks 4, 5, 6

    assert ids(allocator.allocate(6)) == [3, 2, 1, 6, 5, 4]
    assert allocator.evictions == 6
    assert allocator.num_published == 0


def test_a_shared_head_outlives_both_tails(make_chain: MakeChain) -> None:
    """KV-4: a fork goes only after its branches, though it was cached before one of them."""
    allocator = BlockAllocator(4, 4)
    first, second = make_chain(range(8)), make_chain([0, 1, 2, 3, 9, 9, 9, 9])
    head, tail = allocator.allocate(2)
    publish_all(allocator, [head, tail], first)
    (branch,) = allocator.allocate(1)
    allocator.publish(branch, second.identities[1], second.hashes[1])
    allocator.free([head])
    allocator.free([tail])
    allocator.free([branch])

    assert ids(allocator.allocate(3)) == ids([tail, branch, head])


def test_an_ancestor_of_a_live_leaf_is_passed_over(make_chain: MakeChain) -> None:
    """KV-4: an older ancestor stays while a younger leaf can go."""
    allocator = BlockAllocator(5, 4)
    chain = make_chain(range(8))
    head, tail = allocator.allocate(2)
    publish_all(allocator, [head, tail], chain)
    allocator.free([head])
    (leaf,) = cached_chain(allocator, make_chain(range(50, 54)))
    allocator.allocate(1)  # the last free block

    assert allocator.allocate(1) == [leaf]
    allocator.check()
    assert allocator.allocate(1) == [head], "nothing else was left"
    assert allocator.num_published == 1
    allocator.check()


def test_a_head_set_aside_returns_when_its_last_child_goes(make_chain: MakeChain) -> None:
    """KV-4: once childless, an ancestor is the oldest again and goes next."""
    allocator = BlockAllocator(5, 4)
    head, tail, younger, youngest = allocator.allocate(4)
    publish_all(allocator, [head, tail], make_chain(range(8)))
    publish_all(allocator, [younger], make_chain(range(50, 54)))
    publish_all(allocator, [youngest], make_chain(range(60, 64)))
    allocator.free([head])
    allocator.free([younger])

    assert allocator.allocate(1) == [younger], "the head was passed over"
    allocator.free([tail])
    allocator.free([youngest])
    assert allocator.allocate(3) == [tail, head, youngest]


def test_reuse_makes_a_chain_young(make_chain: MakeChain) -> None:
    """KV-1: a chain that was hit again is evicted after one that was not."""
    allocator = BlockAllocator(5, 4)
    old = cached_chain(allocator, make_chain(range(8)))
    new = cached_chain(allocator, make_chain(range(50, 58)))
    allocator.share(old)
    allocator.free(old)

    assert ids(allocator.allocate(4)) == ids([new[1], new[0], old[1], old[0]])


def test_publishing_a_foreign_hash_is_a_pure_no_op(make_chain: MakeChain) -> None:
    """KV-3: while another block owns the hash, nothing happens to the caller's block."""
    allocator = BlockAllocator(4, 4)
    chain, other = make_chain(range(4)), make_chain(range(50, 54))
    owner, mine = allocator.allocate(2)
    publish_all(allocator, [owner], chain)
    publish_all(allocator, [mine], other)

    assert publish_all(allocator, [mine], chain) == [False]
    assert allocator.lookup(chain.hashes[0], chain.identities[0]) is owner
    assert allocator.lookup(other.hashes[0], other.identities[0]) is mine


def test_publishing_again_is_a_no_op(make_chain: MakeChain) -> None:
    """KV-3: the owner of a hash may publish it twice."""
    allocator = BlockAllocator(4, 4)
    blocks = allocator.allocate(2)
    chain = make_chain(range(8))

    assert publish_all(allocator, blocks, chain) == [True, True]
    assert publish_all(allocator, blocks, chain) == [True, True]
    assert (blocks[0].ref_count, allocator.num_published) == (1, 2)
    allocator.check()


def test_a_second_hash_replaces_the_first(make_chain: MakeChain) -> None:
    """KV-3: a block has one hash at most; publishing under another one drops the old entry."""
    allocator = BlockAllocator(4, 4)
    (block,) = allocator.allocate(1)
    first, second = make_chain(range(4)), make_chain(range(50, 54))
    publish_all(allocator, [block], first)

    assert publish_all(allocator, [block], second) == [True]
    assert allocator.lookup(first.hashes[0], first.identities[0]) is None
    assert allocator.lookup(second.hashes[0], second.identities[0]) is block
    allocator.check()


def test_a_collision_is_a_miss(make_chain: MakeChain) -> None:
    """KV-3: the identity is compared, so an equal hash of other content finds nothing."""
    allocator = BlockAllocator(4, 4)
    chain, other = make_chain(range(4)), make_chain(range(50, 54))
    publish_all(allocator, allocator.allocate(1), chain)

    assert allocator.lookup(chain.hashes[0], other.identities[0]) is None


def test_purge_unpublishes_everything(make_chain: MakeChain) -> None:
    """KV-1: after a purge nothing is found; live blocks stay with their holders."""
    allocator = BlockAllocator(6, 4)
    live = allocator.allocate(1)
    publish_all(allocator, live, make_chain(range(4)))
    cached_chain(allocator, make_chain(range(50, 58)))
    allocator.purge()

    assert (allocator.num_published, allocator.num_free, allocator.num_live) == (0, 4, 1)
    assert live[0].hash is None
    allocator.free(live)
    assert allocator.num_free == 5
    allocator.check()


def test_growth_appends_to_the_free_queue() -> None:
    """KV-6: new ids come behind the free ones, up to the maximum."""
    allocator = BlockAllocator(3, 4, max_num_blocks=5)
    allocator.grow_by(2)

    assert (allocator.num_blocks, allocator.num_free) == (5, 4)
    assert ids(allocator.allocate(4)) == [1, 2, 3, 4]
    with pytest.raises(CacheMisuseError, match="at most 5"):
        allocator.grow_by(1)
    allocator.check()


# -- blocks that a window has moved past -------------------------------------------------


def test_expired_blocks_go_before_all_other_cached_ones(make_chain: MakeChain) -> None:
    """GR-3: what a window has moved past is evicted first, in the order of its expiry."""
    allocator = BlockAllocator(7, 4)
    old = cached_chain(allocator, make_chain(range(8)))
    passed = allocator.allocate(3)
    publish_all(allocator, passed, make_chain(range(50, 62)))
    allocator.expire(passed[:2])
    allocator.expire(passed[2:])

    assert ids(allocator.allocate(5)) == [6, *ids(passed), old[1].id]
    assert allocator.evictions == 4
    allocator.check()


def test_an_expired_block_nobody_can_find_is_free(make_chain: MakeChain) -> None:
    """GR-3: unpublished blocks go to the free queue, whatever let go of them."""
    allocator = BlockAllocator(4, 4)
    blocks = allocator.allocate(2)
    allocator.expire(blocks)

    assert (allocator.num_free, allocator.num_evictable) == (3, 0)
    assert ids(allocator.allocate(3)) == [3, 1, 2]
    allocator.check()


def test_a_shared_block_expires_with_its_last_holder(make_chain: MakeChain) -> None:
    """KV-2: one window moves on, another sequence still holds the block."""
    allocator = BlockAllocator(4, 4)
    blocks = allocator.allocate(1)
    publish_all(allocator, blocks, make_chain(range(4)))
    allocator.share(blocks)
    allocator.expire(blocks)

    assert (allocator.num_live, allocator.num_evictable) == (1, 0)
    allocator.free(blocks)
    assert list(allocator._evictable) == blocks, "released, not moved past"
    allocator.check()


def test_a_hit_takes_an_expired_block_back(make_chain: MakeChain) -> None:
    """GR-7: what waits to be evicted first can still be found and held."""
    allocator = BlockAllocator(4, 4)
    chain = make_chain(range(4))
    blocks = allocator.allocate(1)
    publish_all(allocator, blocks, chain)
    allocator.expire(blocks)
    found = allocator.lookup(chain.hashes[0], chain.identities[0])

    assert found is blocks[0]
    allocator.share(blocks)
    assert (allocator.num_live, blocks[0].queue) == (1, None)
    allocator.check()


@pytest.mark.parametrize("pinned_first", [True, False])
def test_a_pinned_block_waits_like_others(make_chain: MakeChain, pinned_first: bool) -> None:
    """SD-6: pinned before or after its window moved on, it is not evicted first."""
    allocator = BlockAllocator(5, 4)
    chain = make_chain(range(8))
    old = cached_chain(allocator, make_chain(range(50, 54)))
    blocks = allocator.allocate(2)
    publish_all(allocator, blocks, chain)
    if pinned_first:
        allocator.pin(chain.hashes[1:])
    allocator.expire(blocks)
    if not pinned_first:
        allocator.pin(chain.hashes[1:])
    allocator.check()

    assert ids(allocator.allocate(4)) == [4, blocks[0].id, old[0].id, blocks[1].id]
    allocator.check()


def test_pins_are_counted(make_chain: MakeChain) -> None:
    """SD-6: a block is pinned until everybody has taken his pin back."""
    allocator = BlockAllocator(5, 4)
    chain = make_chain(range(8))
    blocks = allocator.allocate(2)
    publish_all(allocator, blocks, chain)
    for _ in range(2):
        allocator.pin(chain.hashes)
    allocator.unpin(chain.hashes)
    allocator.expire(blocks[:1])
    allocator.unpin(chain.hashes)
    allocator.expire(blocks[1:])

    assert not list(allocator._evictable), "nothing holds it back any more"
    assert list(allocator._expired) == blocks
    assert not allocator._pins
    allocator.check()


def test_a_pin_of_what_nobody_has_changes_nothing(make_chain: MakeChain) -> None:
    """SD-6: a pin is a wish about a content, and holds for a block that comes later."""
    allocator = BlockAllocator(4, 4)
    chain = make_chain(range(4))
    allocator.pin(chain.hashes)
    blocks = allocator.allocate(1)
    publish_all(allocator, blocks, chain)
    allocator.expire(blocks)

    assert list(allocator._evictable) == blocks
    allocator.unpin(chain.hashes)
    allocator.unpin(chain.hashes)
    assert not allocator._pins
    allocator.check()


def test_purge_frees_what_was_moved_past_too(make_chain: MakeChain) -> None:
    """KV-8: after a purge every cached block is free, in whichever queue it waited."""
    allocator = BlockAllocator(6, 4)
    cached_chain(allocator, make_chain(range(8)))
    passed = allocator.allocate(2)
    publish_all(allocator, passed, make_chain(range(50, 58)))
    allocator.expire(passed)
    allocator.purge()

    assert (allocator.num_free, allocator.num_evictable, allocator.num_published) == (5, 0, 0)
    allocator.check()


def test_an_expired_parent_does_not_wait_for_its_children(make_chain: MakeChain) -> None:
    """GR-3: a window needs no block before its first, so an expired head may go alone.

    Its child stays, and a head set aside for it comes back once the child goes.
    """
    allocator = BlockAllocator(4, 4)
    chain = make_chain(range(12))
    blocks = allocator.allocate(3)
    publish_all(allocator, blocks, chain)
    allocator.expire(blocks[:1])
    allocator.free(blocks[1:])

    assert ids(allocator.allocate(1)) == ids(blocks[:1])
    allocator.check()
    assert ids(allocator.allocate(2)) == ids(blocks[:0:-1])
    allocator.check()


@pytest.mark.parametrize("operation", ["free", "expire"])
def test_letting_go_twice_is_refused(operation: str) -> None:
    """KV-8: neither way of giving a reference back takes one that is not there."""
    allocator = BlockAllocator(5, 4)
    blocks = allocator.allocate(2)
    let_go = getattr(allocator, operation)
    with pytest.raises(CacheMisuseError, match="twice"):
        let_go([blocks[0], blocks[0]])
    let_go(blocks[1:])

    with pytest.raises(CacheMisuseError, match="the block has no reference"):
        let_go(blocks)
    assert [block.ref_count for block in blocks] == [1, 0]
    allocator.check()


def test_misuse_is_refused_before_any_change(make_chain: MakeChain) -> None:
    """KV-8: double release, sharing or publishing what nobody holds, an unfilled block."""
    allocator = BlockAllocator(6, 4)
    blocks = allocator.allocate(3)
    freed = blocks[2]
    allocator.free([freed])
    chain = make_chain(range(4))

    with pytest.raises(CacheMisuseError, match="the block has no reference"):
        allocator.free(blocks)
    with pytest.raises(CacheMisuseError, match="twice"):
        allocator.free([blocks[0], blocks[0]])
    with pytest.raises(CacheMisuseError, match="the block is free"):
        allocator.share(blocks)
    with pytest.raises(CacheMisuseError, match="the block has no reference"):
        allocator.publish(freed, chain.identities[0], chain.hashes[0])
    unfilled = make_chain(range(3), block_size=3)
    with pytest.raises(CacheMisuseError, match="3 tokens, a full one 4"):
        allocator.publish(blocks[0], unfilled.identities[0], unfilled.hashes[0])
    assert [b.ref_count for b in blocks] == [1, 1, 0]
    allocator.check()


@pytest.mark.parametrize("sizes", [(1, 4, None), (4, 4, 3), (4, 0, None)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int | None]) -> None:
    """KV-1: there is a null block and another one, and the maximum is not below the size."""
    with pytest.raises(ValueError, match="at least"):
        BlockAllocator(*sizes)


Path = tuple[int, ...]
paths = st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple)


class AllocatorMachine(RuleBasedStateMachine):
    """KV-1, KV-4, GR-3: the allocator against lists and dicts. Blocks have one token each."""

    @initialize(size=st.integers(2, 7), spare=st.integers(0, 4))
    def start(self, size: int, spare: int) -> None:
        self.real = BlockAllocator(size, 1, size + spare)
        self.spare = spare
        self.free_ids = list(range(1, size))
        self.cached: list[int] = []  # oldest release first
        self.expired: list[int] = []  # oldest expiry first
        self.held_back: set[int] = set()  # of the cached ones, by a pin alone
        self.pins: list[list[Path]] = []
        self.refs: dict[int, int] = {}
        self.table: dict[Path, int] = {}  # in order of publication
        self.holdings: list[list[Block]] = []
        self.evictions = 0

    def path_of(self, block_id: int) -> Path | None:
        return next((path for path, owner in self.table.items() if owner == block_id), None)

    def is_leaf(self, block_id: int) -> bool:
        path = self.path_of(block_id)
        return not any(child[:-1] == path for child in self.table)

    def expect_handed_out(self, block_id: int) -> None:
        if self.free_ids:
            assert block_id == self.free_ids.pop(0)
        else:
            leaves = [i for i in self.cached if self.is_leaf(i)]
            expected = self.expired[:1] or leaves[:1] or self.cached
            assert block_id in expected
            self.evictions += 1
            (self.expired if self.expired else self.cached).remove(block_id)
            self.held_back.discard(block_id)
            path = self.path_of(block_id)
            assert path is not None
            del self.table[path]
        self.refs[block_id] = 1

    @rule(count=st.integers(0, 4))
    def allocate(self, count: int) -> None:
        if count > len(self.free_ids) + len(self.cached) + len(self.expired):
            with pytest.raises(CacheExhaustedError):
                self.real.allocate(count)
            return
        blocks = self.real.allocate(count)
        assert len(blocks) == count
        for block in blocks:
            self.expect_handed_out(block.id)
        self.holdings.append(blocks)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = self.holdings.pop(data.draw(st.integers(0, len(self.holdings) - 1)))
        self.real.free(blocks)
        for block in reversed(blocks):
            self.refs[block.id] -= 1
            if self.refs[block.id] == 0:
                del self.refs[block.id]
                published = self.path_of(block.id) is not None
                (self.cached if published else self.free_ids).append(block.id)

    def is_pinned(self, path: Path | None) -> bool:
        return any(path in paths for paths in self.pins)

    @precondition(lambda self: self.holdings)
    @rule(data=st.data(), count=st.integers(1, 4))
    def expire(self, data: st.DataObject, count: int) -> None:
        blocks = data.draw(st.sampled_from(self.holdings))
        passed = blocks[:count]
        del blocks[:count]
        self.real.expire(passed)
        for block in passed:
            self.refs[block.id] -= 1
            if self.refs[block.id] == 0:
                del self.refs[block.id]
                path = self.path_of(block.id)
                cached = self.cached if self.is_pinned(path) else self.expired
                (self.free_ids if path is None else cached).append(block.id)
                if self.is_pinned(path):
                    self.held_back.add(block.id)

    @rule(pinned=st.lists(paths, max_size=3, unique=True))
    def pin(self, pinned: list[Path]) -> None:
        self.real.pin([self.chain(path).hashes[-1] for path in pinned])
        self.pins.append(pinned)
        for path in pinned:
            block_id = self.table.get(path)
            if block_id is not None and block_id in self.expired:
                self.expired.remove(block_id)
                self.cached.append(block_id)
                self.held_back.add(block_id)

    @precondition(lambda self: self.table)
    @rule(data=st.data())
    def rescue(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.table)))
        self.real.rescue(self.chain(path).hashes[-1:])
        block_id = self.table[path]
        if block_id in self.expired:
            self.expired.remove(block_id)
            self.cached.append(block_id)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pinned = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        self.real.unpin([self.chain(path).hashes[-1] for path in pinned])
        for path in pinned:
            block_id = self.table.get(path)
            if block_id in self.held_back and not self.is_pinned(path):
                self.held_back.remove(block_id)
                self.cached.remove(block_id)
                self.expired.append(block_id)

    @precondition(lambda self: self.table)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        found = data.draw(st.lists(st.sampled_from(sorted(self.table)), unique=True))
        blocks = [self.lookup(path) for path in found]
        self.real.share(blocks)
        for block in blocks:
            for waiting in (self.cached, self.expired):
                if block.id in waiting:
                    waiting.remove(block.id)
            self.held_back.discard(block.id)
            self.refs[block.id] = self.refs.get(block.id, 0) + 1
        self.holdings.append(blocks)

    def lookup(self, path: Path) -> Block:
        chain = self.chain(path)
        block = self.real.lookup(chain.hashes[-1], chain.identities[-1])
        assert block is not None
        assert block.id == self.table[path]
        return block

    def chain(self, path: Path) -> PrefixChain:
        chain = PrefixChain(1)
        chain.extend(path, len(path))
        return chain

    @precondition(lambda self: any(self.holdings))
    @rule(data=st.data(), path=paths)
    def publish(self, data: st.DataObject, path: Path) -> None:
        held = [b for blocks in self.holdings for b in blocks]
        block = data.draw(st.sampled_from(held))
        if self.path_of(block.id) not in (None, path):
            return  # a second hash has its own test
        chain = self.chain(path)
        done = self.real.publish(block, chain.identities[-1], chain.hashes[-1])
        assert done == (self.table.setdefault(path, block.id) == block.id)

    @rule()
    def purge(self) -> None:
        self.real.purge()
        waiting = {*self.cached, *self.expired}
        self.free_ids += [i for i in self.table.values() if i in waiting]
        self.cached.clear()
        self.expired.clear()
        self.held_back.clear()
        self.table.clear()

    @rule(count=st.integers(0, 3))
    def grow(self, count: int) -> None:
        size = self.real.num_blocks
        if count > self.spare:
            with pytest.raises(CacheMisuseError):
                self.real.grow_by(count)
            return
        self.real.grow_by(count)
        self.spare -= count
        self.free_ids += range(size, size + count)

    @invariant()
    def agrees(self) -> None:
        self.real.check()
        assert self.real.num_free == len(self.free_ids)
        assert self.real.num_evictable == len(self.cached) + len(self.expired)
        assert [block.id for block in self.real._expired] == self.expired
        assert self.real.num_live == len(self.refs)
        assert self.real.evictions == self.evictions
        held = {b.id: b.ref_count for blocks in self.holdings for b in blocks}
        assert held == self.refs
        hashes: dict[BlockHash, int] = {
            self.chain(p).hashes[-1]: i for p, i in self.table.items()
        }
        assert {h: b.id for h, b in self.real._table.items()} == hashes


AllocatorMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
test_allocator_machine = AllocatorMachine.TestCase
