from __future__ import annotations

from collections import Counter

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

from neve.contract.cache_spec import FullAttention, SlidingWindow, layer_routes
from neve.errors import CacheExhaustedError, CacheMisuseError, MemoryBudgetError
from neve.ids import BlockHash, SaltDomain, SequenceId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.sequence import Sequence

SIZE = 2

LAYOUTS: list[tuple[int | None, ...]] = [
    (None, None),
    (None, 4),
    (3, None),
    (None, 1),
    (2, 7, None),
    (None, 5, None),
]
"""The window of each group; None for one that keeps everything."""

zeros = st.integers(0, 8).map(lambda n: [0] * n)
tails = st.lists(st.integers(0, 1), min_size=1, max_size=4)
prompts = st.tuples(zeros, tails).map(lambda parts: parts[0] + parts[1])

Content = tuple[int, ...]
"""A salt and all tokens up to a position: what that position's keys and values depend on."""


@attrs.define(eq=False)
class Model:
    """What a sequence must be, in plain values.

    `given` are the leading blocks, one number a group, that gave way to a step in flight.
    """

    real: Sequence
    salt: int
    tokens: list[int]
    cursor: int
    frontier: int
    num_published: int
    given: list[int]
    settled: int  # its frontier when it last published
    in_flight: int = 0  # most positions that were ever reserved beyond that

    def content(self, num_tokens: int) -> Content:
        return (self.salt, *self.tokens[:num_tokens])


class CoordinatorMachine(RuleBasedStateMachine):
    """KV-2, KV-8, KV-9, GR-2, GR-3, GR-7: the cache against a naive memory.

    Its slots say what they hold: committed positions their content, positions in a step
    garbage. A sequence must always read its own content, as far as its layers see, whoever
    shares, evicts, grows, restores or writes in between.
    """

    @initialize(
        windows=st.sampled_from(LAYOUTS),
        sizes=st.tuples(*[st.integers(3, 18)] * 3),
        spare=st.integers(0, 5),
        anchors=st.booleans(),
    )
    def start(
        self,
        windows: tuple[int | None, ...],
        sizes: tuple[int, ...],
        spare: int,
        anchors: bool,
    ) -> None:
        self.windows = windows
        layout = layer_routes(
            [
                FullAttention(1, 8 + i) if window is None else SlidingWindow(window, 1, 8 + i)
                for i, window in enumerate(windows)
            ]
        )
        self.pools = [  # a window's is smaller, so that windows have to give way at times
            n if window is None else 3 + n // 4
            for n, window in zip(sizes, windows, strict=False)
        ]
        self.tight = False
        allocators = [BlockAllocator(n, SIZE, n + spare) for n in self.pools]
        self.real = Coordinator(layout, allocators, self.grow)
        if anchors and self.real.kinds.windows is not None:
            self.real.kinds.windows.pins.want_anchors((1, 2, 4))
        self.slots: dict[tuple[int, int, int], object] = {}  # group, block, offset -> content
        self.published: list[set[Content]] = [set() for _ in windows]
        self.live: list[Model] = []
        self.claims: dict[Content, Model] = {}
        self.next_id = 0

    def grow(self, group: int, num_blocks: int) -> None:
        if self.tight:
            raise MemoryBudgetError("no room")
        assert num_blocks > self.pools[group]
        self.pools[group] = num_blocks

    def first_seen(self, group: int, num_tokens: int) -> int:
        """Return the first position that a token behind `num_tokens` others sees."""
        window = self.windows[group]
        return 0 if window is None else max(0, num_tokens - window + 1)

    def slots_of(self, model: Model, position: int) -> list[tuple[int, int, int]]:
        index, offset = divmod(position, SIZE)
        return [
            (group, table.blocks[index].id, offset)
            for group, table in enumerate(model.real.tables)
            if index >= table.num_expired
        ]

    # -- prefixes --------------------------------------------------------------------------

    @rule(
        tokens=prompts,
        salt=st.sampled_from([0, 0, 0, 1]),
        compute=st.booleans(),
    )
    @precondition(lambda self: len(self.live) < 4)
    def attach(self, tokens: list[int], salt: int, compute: bool) -> None:
        model = self.begin(tokens, salt)
        if compute:
            self.prefill(model)

    def begin(self, tokens: list[int], salt: int) -> Model:
        """Open and attach a sequence; its hit is what the model says."""
        real = self.real.open(SequenceId(self.next_id), tokens, salt=SaltDomain(salt))
        self.next_id += 1
        hit = self.real.match_prefix(real)
        given, blocks = [0] * len(self.windows), hit.length // SIZE
        model = Model(real, salt, tokens, hit.length, hit.length, blocks, given, hit.length)
        limit = (len(tokens) - 1) // SIZE * SIZE

        assert hit.length == self.longest_hit(real, limit)
        possible = self.longest_boundary(model, limit)
        evicted = any(group.allocator.evictions for group in self.real.groups)
        assert hit.length <= possible if evicted else hit.length == possible
        assert hit.awaited == self.longest_claim(model, hit.length, limit)
        groups = self.real.groups
        beside = [g.available_beside(b) for g, b in zip(groups, hit.blocks, strict=True)]
        self.real.attach(real, hit)
        assert [group.num_available for group in groups] == beside
        for end in range(hit.length + SIZE, len(tokens) + 1, SIZE):
            self.claims.setdefault(model.content(end), model)
        self.live.append(model)
        return model

    def prefill(self, model: Model) -> None:
        """Compute and publish the whole prompt, so that there is something to hit."""
        self.move_cursor(model, len(model.tokens) - model.cursor)
        self.move_frontier(model, model.cursor - model.frontier)
        self.publish_full_blocks(model)

    def longest_hit(self, real: Sequence, limit: int) -> int:
        """Return the deepest boundary for which each group's prefix table has what it sees."""
        held = [
            {
                index
                for index in range(limit // SIZE)
                if group.allocator.lookup(
                    real.chain.hashes[index], real.chain.identities[index]
                )
            }
            for group in self.real.groups
        ]
        return self.deepest(held, limit)

    def longest_boundary(self, model: Model, limit: int) -> int:
        """Return the same from what was ever published, without hashes, blocks and queues."""
        held = [
            {
                index
                for index in range(limit // SIZE)
                if model.content((index + 1) * SIZE) in published
            }
            for published in self.published
        ]
        return self.deepest(held, limit)

    def deepest(self, held: list[set[int]], limit: int) -> int:
        for boundary in range(limit, 0, -SIZE):
            needed = [
                range(self.first_seen(group, boundary) // SIZE, boundary // SIZE)
                for group in range(len(held))
            ]
            if all(h.issuperset(n) for h, n in zip(held, needed, strict=True)):
                return boundary
        return 0

    def longest_claim(self, model: Model, length: int, limit: int) -> int:
        while length < limit and model.content(length + SIZE) in self.claims:
            length += SIZE
        return length

    # -- restores --------------------------------------------------------------------------

    @rule(
        tokens=prompts,
        salt=st.sampled_from([0, 0, 0, 1]),
        data=st.data(),
        outcome=st.sampled_from(["found", "found", "nothing", "released"]),
    )
    @precondition(lambda self: len(self.live) < 4)
    def restore(self, tokens: list[int], salt: int, data: st.DataObject, outcome: str) -> None:
        """Attach, and bring blocks behind the hit in from elsewhere, or fail to."""
        model = self.begin(tokens, salt)
        limit = (len(tokens) - 1) // SIZE
        first = model.frontier // SIZE
        if first == limit:
            return
        end = data.draw(st.integers(first + 1, limit)) * SIZE
        if not self.reserve_restore(model, end):
            return
        if outcome == "released":
            self.let_go(model)
            return
        boundary = model.frontier
        if outcome == "found":
            boundary = SIZE * data.draw(st.integers(first + 1, end // SIZE))
            if self.real.kinds.windows is not None:
                self.install(model, boundary)
        model.cursor = boundary
        self.move_frontier(model, boundary - model.frontier)
        self.publish_full_blocks(model)
        self.real.rewind(model.real, end - boundary)
        assert not any(model.real.spare.values())

    def reserve_restore(self, model: Model, end: int) -> bool:
        counts = [
            end // SIZE - max(self.first_seen(group, end) // SIZE, len(table))
            for group, table in enumerate(model.real.tables)
        ]
        tables = [table.ids for table in model.real.tables]
        if all(n <= self.could_have(group) for group, n in enumerate(counts)):
            self.real.reserve_restore(model.real, end - model.cursor)
            for group, (window, n) in enumerate(zip(self.windows, counts, strict=True)):
                held = len(model.real.spare.get(group, []))
                assert held == (max(n, 0) if window else 0)
            return True
        with pytest.raises(CacheExhaustedError):
            self.real.reserve_restore(model.real, end - model.cursor)
        assert [table.ids for table in model.real.tables] == tables
        return False

    def install(self, model: Model, boundary: int) -> None:
        assert self.real.kinds.windows is not None
        installed = self.real.kinds.windows.install(model.real, boundary)
        for group, ids in installed.items():
            table = model.real.tables[group]
            assert table.num_expired == self.first_seen(group, boundary) // SIZE
            assert len(table) == boundary // SIZE
            assert table.ids[len(table) - len(ids) :] == ids

    # -- steps -----------------------------------------------------------------------------

    def pick(self, data: st.DataObject) -> Model:
        return data.draw(st.sampled_from(self.live))

    @rule(data=st.data(), n=st.integers(0, 5))
    @precondition(lambda self: self.live)
    def reserve(self, data: st.DataObject, n: int) -> None:
        self.move_cursor(self.pick(data), n)

    def move_cursor(self, model: Model, n: int) -> None:
        tables = [table.ids for table in model.real.tables]
        missing = [max(0, -(-(model.cursor + n) // SIZE) - len(ids)) for ids in tables]
        short = [group for group, m in enumerate(missing) if m > self.could_have(group)]
        enough = all(missing[g] <= self.could_have(g) + self.gives(model, g) for g in short)
        if enough:
            self.real.reserve(model.real, n)
            self.note_what_gave_way(model, short)
            for position in range(model.cursor, model.cursor + n):
                self.slots.update(dict.fromkeys(self.slots_of(model, position), "garbage"))
            model.cursor += n
            model.in_flight = max(model.in_flight, model.cursor - model.settled)
            return
        with pytest.raises(CacheExhaustedError):
            self.real.reserve(model.real, n)
        self.note_what_gave_way(model, short)
        for ids, table in zip(tables, model.real.tables, strict=True):
            assert table.ids == [0] * table.num_expired + ids[table.num_expired :]

    def note_what_gave_way(self, model: Model, short: list[int]) -> None:
        """Note what windows gave up beyond the frontier's, in groups that were short."""
        for group, table in enumerate(model.real.tables):
            settled = self.first_seen(group, model.settled) // SIZE
            if table.num_expired > max(settled, model.given[group]):
                assert group in short
                assert table.num_expired <= self.first_seen(group, model.cursor) // SIZE
                model.given[group] = table.num_expired

    def could_have(self, group: int) -> int:
        allocator = self.real.groups[group].allocator
        growable = 0 if self.tight else allocator.max_num_blocks - allocator.num_blocks
        return allocator.num_free + allocator.num_evictable + growable

    def gives(self, model: Model, group: int) -> int:
        """Return the blocks that a window gives up if its next step needs them."""
        table = model.real.tables[group]
        passed = table.blocks[table.num_expired : self.first_seen(group, model.cursor) // SIZE]
        return sum(block.ref_count == 1 for block in passed)

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
    def rewind(self, data: st.DataObject) -> None:
        model = self.pick(data)
        n = data.draw(st.integers(0, model.cursor - model.frontier))
        seen = [self.first_seen(g, model.cursor - n) // SIZE for g in range(len(self.windows))]
        if any(given > s for given, s in zip(model.given, seen, strict=True)):
            with pytest.raises(CacheMisuseError):
                self.real.rewind(model.real, n)
            return
        self.real.rewind(model.real, n)
        model.cursor -= n

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def publish(self, data: st.DataObject) -> None:
        self.publish_full_blocks(self.pick(data))

    def publish_full_blocks(self, model: Model) -> None:
        full = model.frontier // SIZE
        for index in range(model.num_published, full):
            for group, table in enumerate(model.real.tables):
                if index >= table.num_expired:
                    self.published[group].add(model.content((index + 1) * SIZE))

        assert self.real.publish(model.real) == full - model.num_published
        model.num_published = full
        model.settled = model.frontier
        for group, table in enumerate(model.real.tables):
            passed = self.first_seen(group, model.frontier) // SIZE
            assert table.num_expired == max(passed, model.given[group])
        for end in range(SIZE, full * SIZE + 1, SIZE):
            self.drop_claim(model, model.content(end))

    def drop_claim(self, model: Model, content: Content) -> None:
        if self.claims.get(content) is model:
            del self.claims[content]

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def release(self, data: st.DataObject) -> None:
        self.let_go(self.pick(data))

    def let_go(self, model: Model) -> None:
        self.real.release(model.real)
        self.live.remove(model)
        for content in list(self.claims):
            self.drop_claim(model, content)

    @rule()
    def purge(self) -> None:
        self.real.purge()
        for published in self.published:
            published.clear()

    @rule(tight=st.booleans())
    def squeeze(self, tight: bool) -> None:
        self.tight = tight

    # -- what must hold --------------------------------------------------------------------

    @invariant()
    def equations_hold(self) -> None:
        self.real.check()
        assert self.pools == [g.allocator.num_blocks for g in self.real.groups]

    @invariant()
    def pins_are_the_windows_that_are_held_on_to(self) -> None:
        windows = self.real.kinds.windows
        entries = () if windows is None else windows.pins.snapshots.entries
        for index, group in enumerate(self.real.groups):
            pins = Counter[BlockHash]()
            for entry in entries if self.windows[index] else ():
                first = self.first_seen(index, entry.boundary) // SIZE
                pins.update(entry.chain[first : entry.num_blocks])
            assert dict(group.allocator._pins) == dict(pins)

    @invariant()
    def everybody_reads_his_own(self) -> None:
        for model in self.live:
            assert (model.real.cursor, model.real.frontier) == (model.cursor, model.frontier)
            assert model.real.tokens == model.tokens
            for group, table in enumerate(model.real.tables):
                seen = self.first_seen(group, model.frontier)
                assert table.num_expired <= max(seen // SIZE, model.given[group])
                for position in range(max(seen, model.given[group] * SIZE), model.frontier):
                    block = table.blocks[position // SIZE]
                    slot = (group, block.id, position % SIZE)
                    assert self.slots[slot] == model.content(position + 1)

    @invariant()
    def windows_hold_no_more_than_they_see(self) -> None:
        for model in self.live:
            for window, table in zip(self.windows, model.real.tables, strict=True):
                if window is not None:
                    bound = -(-(window - 1 + model.in_flight) // SIZE) + 1
                    assert table.num_held <= bound


CoordinatorMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
test_coordinator_machine = CoordinatorMachine.TestCase
