from __future__ import annotations

import attrs
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

from neve.contract.cache_spec import FullAttention, group_layers
from neve.errors import CacheExhaustedError, MemoryBudgetError
from neve.ids import SaltDomain, SequenceId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.sequence import Sequence

SIZE = 2
GROUPS = 2

zeros = st.integers(0, 6).map(lambda n: [0] * n)
tails = st.lists(st.integers(0, 1), min_size=1, max_size=4)
prompts = st.tuples(zeros, tails).map(lambda parts: parts[0] + parts[1])

Content = tuple[int, ...]
"""A salt and all tokens up to a position: what that position's keys and values depend on."""


@attrs.define(eq=False)
class Model:
    """What a sequence must be, in plain values."""

    real: Sequence
    salt: int
    tokens: list[int]
    cursor: int
    frontier: int
    num_published: int

    def content(self, num_tokens: int) -> Content:
        return (self.salt, *self.tokens[:num_tokens])


class CoordinatorMachine(RuleBasedStateMachine):
    """KV-2, KV-8, KV-9, GR-2: the cache against a memory whose slots say what they hold.

    Committed positions hold their content, positions in a step hold garbage. A sequence must
    always read its own content, whoever shares, evicts, grows or writes in between.
    """

    @initialize(sizes=st.tuples(*[st.integers(3, 14)] * GROUPS), spare=st.integers(0, 5))
    def start(self, sizes: tuple[int, ...], spare: int) -> None:
        layout = group_layers([FullAttention(1, 8 + i) for i in range(GROUPS)])
        self.pools = list(sizes)
        self.tight = False
        allocators = [BlockAllocator(n, SIZE, n + spare) for n in sizes]
        self.real = Coordinator(layout, allocators, self.grow)
        self.slots: dict[tuple[int, int, int], object] = {}  # group, block, offset -> content
        self.live: list[Model] = []
        self.claims: dict[Content, Model] = {}
        self.next_id = 0

    def grow(self, group: int, num_blocks: int) -> None:
        if self.tight:
            raise MemoryBudgetError("no room")
        assert num_blocks > self.pools[group]
        self.pools[group] = num_blocks

    def slots_of(self, model: Model, position: int) -> list[tuple[int, int, int]]:
        index, offset = divmod(position, SIZE)
        return [
            (group, table.blocks[index].id, offset)
            for group, table in enumerate(model.real.tables)
        ]

    @rule(
        tokens=prompts,
        salt=st.sampled_from([0, 0, 0, 1]),
        compute=st.booleans(),
    )
    @precondition(lambda self: len(self.live) < 4)
    def attach(self, tokens: list[int], salt: int, compute: bool) -> None:
        real = self.real.open(SequenceId(self.next_id), tokens, salt=SaltDomain(salt))
        self.next_id += 1
        hit = self.real.match_prefix(real)
        model = Model(real, salt, tokens, hit.length, hit.length, hit.length // SIZE)
        limit = (len(tokens) - 1) // SIZE * SIZE

        assert hit.length == self.longest_hit(real, limit)
        assert hit.awaited == self.longest_claim(model, hit.length, limit)
        groups = self.real.groups
        beside = [g.available_beside(b) for g, b in zip(groups, hit.blocks, strict=True)]
        self.real.attach(real, hit)
        assert [group.num_available for group in groups] == beside
        for end in range(hit.length + SIZE, len(tokens) + 1, SIZE):
            self.claims.setdefault(model.content(end), model)
        self.live.append(model)
        if compute:
            self.prefill(model)

    def prefill(self, model: Model) -> None:
        """Compute and publish the whole prompt, so that there is something to hit."""
        self.move_cursor(model, len(model.tokens) - model.cursor)
        self.move_frontier(model, model.cursor - model.frontier)
        self.publish_full_blocks(model)

    def longest_hit(self, real: Sequence, limit: int) -> int:
        length = 0
        for block_hash, identity in zip(
            real.chain.hashes[: limit // SIZE], real.chain.identities, strict=False
        ):
            if any(g.allocator.lookup(block_hash, identity) is None for g in self.real.groups):
                break
            length += SIZE
        return length

    def longest_claim(self, model: Model, length: int, limit: int) -> int:
        while length < limit and model.content(length + SIZE) in self.claims:
            length += SIZE
        return length

    def pick(self, data: st.DataObject) -> Model:
        return data.draw(st.sampled_from(self.live))

    @rule(data=st.data(), n=st.integers(0, 5))
    @precondition(lambda self: self.live)
    def reserve(self, data: st.DataObject, n: int) -> None:
        self.move_cursor(self.pick(data), n)

    def move_cursor(self, model: Model, n: int) -> None:
        tables = [table.ids for table in model.real.tables]
        needed = -(-(model.cursor + n) // SIZE) - len(tables[0])
        if all(needed <= self.could_have(group) for group in range(GROUPS)):
            self.real.reserve(model.real, n)
            for position in range(model.cursor, model.cursor + n):
                self.slots.update(dict.fromkeys(self.slots_of(model, position), "garbage"))
            model.cursor += n
            return
        with pytest.raises(CacheExhaustedError):
            self.real.reserve(model.real, n)
        assert [table.ids for table in model.real.tables] == tables

    def could_have(self, group: int) -> int:
        allocator = self.real.groups[group].allocator
        growable = 0 if self.tight else allocator.max_num_blocks - allocator.num_blocks
        return allocator.num_free + allocator.num_evictable + growable

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def commit(self, data: st.DataObject) -> None:
        model = self.pick(data)
        bound = min(model.cursor, len(model.tokens))
        self.move_frontier(model, data.draw(st.integers(0, bound - model.frontier)))

    def move_frontier(self, model: Model, n: int) -> None:
        self.real.commit(model.real, n)
        for position in range(model.frontier, model.frontier + n):
            content = model.content(position + 1)
            self.slots.update(dict.fromkeys(self.slots_of(model, position), content))
        model.frontier += n

    @rule(data=st.data(), token=st.integers(0, 1))
    @precondition(lambda self: any(len(m.tokens) <= m.cursor for m in self.live))
    def record(self, data: st.DataObject, token: int) -> None:
        ready = [m for m in self.live if len(m.tokens) <= m.cursor]
        model = data.draw(st.sampled_from(ready))
        self.real.record(model.real, [token])
        model.tokens.append(token)

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def rollback(self, data: st.DataObject) -> None:
        model = self.pick(data)
        n = data.draw(st.integers(0, model.cursor - model.frontier))
        self.real.rollback(model.real, n)
        model.cursor -= n

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def publish(self, data: st.DataObject) -> None:
        self.publish_full_blocks(self.pick(data))

    def publish_full_blocks(self, model: Model) -> None:
        full = model.frontier // SIZE

        assert self.real.publish(model.real) == full - model.num_published
        model.num_published = full
        for end in range(SIZE, full * SIZE + 1, SIZE):
            self.drop_claim(model, model.content(end))

    def drop_claim(self, model: Model, content: Content) -> None:
        if self.claims.get(content) is model:
            del self.claims[content]

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def release(self, data: st.DataObject) -> None:
        model = self.pick(data)
        self.real.release(model.real)
        self.live.remove(model)
        for content in list(self.claims):
            self.drop_claim(model, content)

    @rule()
    def purge(self) -> None:
        self.real.purge()

    @rule(tight=st.booleans())
    def squeeze(self, tight: bool) -> None:
        self.tight = tight

    @invariant()
    def equations_hold(self) -> None:
        self.real.check()
        assert self.pools == [g.allocator.num_blocks for g in self.real.groups]

    @invariant()
    def everybody_reads_his_own(self) -> None:
        for model in self.live:
            assert (model.real.cursor, model.real.frontier) == (model.cursor, model.frontier)
            assert model.real.tokens == model.tokens
            for position in range(model.frontier):
                expected = model.content(position + 1)
                assert all(self.slots[s] == expected for s in self.slots_of(model, position))


CoordinatorMachine.TestCase.settings = settings(
    max_examples=400, stateful_step_count=40, deadline=None
)
test_coordinator_machine = CoordinatorMachine.TestCase
