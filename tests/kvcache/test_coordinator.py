from __future__ import annotations

from collections import abc
from collections.abc import Callable

import pytest

from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    Owned,
    RecurrentState,
    StateTensor,
    layer_routes,
)
from neve.errors import CacheExhaustedError, CacheMisuseError, MemoryBudgetError
from neve.ids import BlockHash, SaltDomain, SequenceId
from neve.kvcache import block_identity
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_identity import BlockIdentity
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.prefix import PrefixHit
from neve.kvcache.sequence import Sequence, SequenceStatus
from neve.kvcache.state_keeper import KeptState, StateKeeper

MakeCoordinator = Callable[..., Coordinator]
Start = Callable[..., Sequence]


def match(coordinator: Coordinator, sequence_id: int, tokens: range | list[int]) -> PrefixHit:
    return coordinator.match_prefix(coordinator.open(SequenceId(sequence_id), tokens))


def table_ids(sequence: Sequence) -> list[list[int]]:
    return [list(table.ids) for table in sequence.tables]


# -- prefixes ----------------------------------------------------------------------------


def test_a_second_request_shares_the_first_ones_blocks(
    make_coordinator: MakeCoordinator, prefill: Start, attach: Start
) -> None:
    """KV-2: a common prefix is the same physical blocks, in every group."""
    coordinator = make_coordinator(16, 16)
    first = prefill(coordinator, 1, range(10))
    second = attach(coordinator, 2, [*range(8), 90, 91])

    assert table_ids(first) == [[1, 2, 3], [1, 2, 3]]
    assert table_ids(second) == [[1, 2], [1, 2]]
    assert (second.cursor, second.frontier, second.num_published) == (8, 8, 2)
    coordinator.reserve(second, 2)
    assert table_ids(second) == [[1, 2, 4], [1, 2, 4]]
    coordinator.check()
    coordinator.release(second)
    coordinator.check()


def test_a_full_hit_recomputes_the_last_token(
    make_coordinator: MakeCoordinator, prefill: Start
) -> None:
    """KV-8: a hit is shorter than the prompt, since its last token has to yield logits."""
    coordinator = make_coordinator(16)
    prefill(coordinator, 1, range(8))

    assert match(coordinator, 2, range(8)).length == 4
    assert match(coordinator, 3, range(9)).length == 8


def test_a_released_prefix_is_still_hit(
    make_coordinator: MakeCoordinator, prefill: Start
) -> None:
    """KV-1: published blocks outlive their sequence until they are evicted."""
    coordinator = make_coordinator(16)
    coordinator.release(prefill(coordinator, 1, range(9)))
    hit = match(coordinator, 2, range(9))

    assert hit.length == 8
    assert [b.id for b in hit.blocks[0]] == [1, 2]


def test_matching_changes_nothing(make_coordinator: MakeCoordinator, prefill: Start) -> None:
    """KV-8: a match takes no reference, counts nothing and may be repeated."""
    coordinator = make_coordinator(16)
    coordinator.release(prefill(coordinator, 1, range(9)))
    before = coordinator.stats()
    sequence = coordinator.open(SequenceId(2), range(9))

    assert coordinator.match_prefix(sequence).length == 8
    assert coordinator.match_prefix(sequence).length == 8
    assert coordinator.stats() == before


def test_the_poorest_group_decides(make_coordinator: MakeCoordinator, prefill: Start) -> None:
    """GR-2: what one group has evicted no group hits."""
    coordinator = make_coordinator(16, 5)
    coordinator.release(prefill(coordinator, 1, range(16)))
    small = coordinator.groups[1].allocator
    small.free(small.allocate(2))

    assert match(coordinator, 2, range(16)).length == 8


def test_salts_do_not_share(
    make_coordinator: MakeCoordinator, prefill: Start, attach: Start
) -> None:
    """KV-9: one domain never hits another's blocks; equal salts do."""
    coordinator = make_coordinator(16)
    prefill(coordinator, 1, range(9), SaltDomain(5))

    assert attach(coordinator, 2, range(9)).cursor == 0
    assert attach(coordinator, 3, range(9), SaltDomain(6)).cursor == 0
    assert attach(coordinator, 4, range(9), SaltDomain(5)).cursor == 8


def test_extra_keys_keep_contents_apart(make_coordinator: MakeCoordinator) -> None:
    """KV-3: equal tokens with other extra keys are another content."""
    coordinator = make_coordinator(16)
    for sequence_id, keys, expected in [(1, ((7,),), 0), (2, ((8,),), 0), (3, ((7,),), 8)]:
        sequence = coordinator.open(SequenceId(sequence_id), range(9), extra_keys=keys)
        hit = coordinator.match_prefix(sequence)
        coordinator.attach(sequence, hit)
        coordinator.reserve(sequence, 9 - hit.length)
        coordinator.commit(sequence, 9 - hit.length)
        coordinator.publish(sequence)

        assert hit.length == expected


def test_a_hash_collision_is_a_miss(
    make_coordinator: MakeCoordinator, monkeypatch: pytest.MonkeyPatch, prefill: Start
) -> None:
    """KV-3: contents with one hash are told apart; the second is computed, not published."""

    def poor_hash(identity: BlockIdentity) -> BlockHash:
        return BlockHash(bytes([identity.index]))

    monkeypatch.setattr(block_identity, "block_hash", poor_hash)
    coordinator = make_coordinator(16, 16)
    prefill(coordinator, 1, range(9))
    second = prefill(coordinator, 2, range(50, 59))

    assert second.num_hit_tokens == 0
    assert second.num_published == 0
    assert match(coordinator, 3, range(9)).length == 8
    assert match(coordinator, 4, range(50, 59)).awaited == 0, "nobody waits for it"
    coordinator.check()


def test_nobody_waits_for_a_chain_that_cannot_be_published(
    make_coordinator: MakeCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    prefill: Start,
    attach: Start,
) -> None:
    """KV-3: a collision ends a chain, also for those that waited for its later blocks."""

    def poor_hash(identity: BlockIdentity) -> BlockHash:
        return BlockHash(bytes([identity.index]))

    monkeypatch.setattr(block_identity, "block_hash", poor_hash)
    coordinator = make_coordinator(16)
    prefill(coordinator, 1, range(5))
    ended = attach(coordinator, 2, range(50, 63))
    waiting = coordinator.open(SequenceId(3), range(9))
    assert coordinator.match_prefix(waiting).awaited == 8
    coordinator.reserve(ended, 4)
    coordinator.commit(ended, 4)

    assert coordinator.publish(ended) == 0
    assert coordinator.match_prefix(waiting).awaited == 4


def test_a_stale_hit_is_refused(
    make_coordinator: MakeCoordinator, prefill: Start, attach: Start
) -> None:
    """KV-8: a hit whose blocks were evicted, or another sequence's, changes nothing."""
    coordinator = make_coordinator(5)
    coordinator.release(prefill(coordinator, 1, range(9)))
    late = coordinator.open(SequenceId(2), range(9))
    hit = coordinator.match_prefix(late)
    stranger = coordinator.open(SequenceId(3), range(50, 59))
    coordinator.match_prefix(stranger)

    with pytest.raises(CacheMisuseError, match="stale or belongs"):
        coordinator.attach(stranger, hit)
    other = attach(coordinator, 4, range(70, 80))
    coordinator.reserve(other, 16)
    with pytest.raises(CacheMisuseError, match="stale or belongs"):
        coordinator.attach(late, hit)
    assert late.cursor == 0
    coordinator.check()


def test_purge_forgets_every_prefix(make_coordinator: MakeCoordinator, prefill: Start) -> None:
    """KV-1: after a purge nothing is hit, and live sequences go on."""
    coordinator = make_coordinator(16, 16)
    live = prefill(coordinator, 1, range(9))
    coordinator.purge()

    assert match(coordinator, 2, range(9)).length == 0
    coordinator.record(live, [1])
    coordinator.reserve(live, 1)
    coordinator.check()


# -- prefixes on their way ---------------------------------------------------------------


def test_a_peer_sees_what_is_being_computed(
    make_coordinator: MakeCoordinator, attach: Start
) -> None:
    """KV-2: full prompt blocks of a live sequence are awaited until they are published."""
    coordinator = make_coordinator(16)
    first = attach(coordinator, 1, range(14))
    second = coordinator.open(SequenceId(2), [*range(8), 99, 99, 99, 99, 99])

    assert coordinator.match_prefix(second).awaited == 8
    coordinator.reserve(first, 4)
    coordinator.commit(first, 4)
    coordinator.publish(first)
    hit = coordinator.match_prefix(second)
    assert (hit.length, hit.awaited) == (4, 8)
    coordinator.reserve(first, 10)
    coordinator.commit(first, 10)
    coordinator.publish(first)
    hit = coordinator.match_prefix(second)
    assert (hit.length, hit.awaited) == (8, 8)


def test_nobody_waits_for_the_last_token(
    make_coordinator: MakeCoordinator, attach: Start
) -> None:
    """KV-8: what is awaited is limited like what is hit."""
    coordinator = make_coordinator(16)
    attach(coordinator, 1, range(8))

    assert match(coordinator, 2, range(8)).awaited == 4


def test_release_ends_the_waiting(make_coordinator: MakeCoordinator, attach: Start) -> None:
    """SC-6: a sequence that ends early is awaited no more, and that is told."""
    coordinator = make_coordinator(16)
    first = attach(coordinator, 1, range(9))
    second = coordinator.open(SequenceId(2), range(9))
    told = coordinator.num_publications
    coordinator.release(first)

    assert coordinator.match_prefix(second).awaited == 0
    assert coordinator.num_publications > told


def test_waiting_knows_domains(make_coordinator: MakeCoordinator, attach: Start) -> None:
    """KV-9: a prefix of another domain is not awaited."""
    coordinator = make_coordinator(16)
    attach(coordinator, 1, range(9), SaltDomain(3))

    assert match(coordinator, 2, range(9)).awaited == 0


def test_publications_are_counted(make_coordinator: MakeCoordinator, prefill: Start) -> None:
    """SC-2: who waits for a prefix need not ask again while the count stands still."""
    coordinator = make_coordinator(16)
    sequence = prefill(coordinator, 1, range(9))
    told = coordinator.num_publications
    coordinator.publish(sequence)

    assert told == 1
    assert coordinator.num_publications == told


# -- reservations ------------------------------------------------------------------------


def test_blocks_are_reserved_as_the_cursor_needs_them(
    make_coordinator: MakeCoordinator, attach: Start
) -> None:
    """KV-1: a block is taken when the first position in it is reserved."""
    coordinator = make_coordinator(16)
    sequence = attach(coordinator, 1, range(3))
    held: list[int] = []
    for n in (3, 1, 1, 0, 4):
        coordinator.reserve(sequence, n)
        held.append(sequence.tables[0].num_held)

    assert held == [1, 1, 2, 2, 3]
    assert sequence.cursor == 9


def test_a_reservation_holds_in_every_group_or_none(
    make_coordinator: MakeCoordinator, attach: Start, prefill: Start
) -> None:
    """GR-2: one group's shortage leaves tables, cursors and cached prefixes of all alone."""
    coordinator = make_coordinator(5, 3)
    coordinator.release(prefill(coordinator, 1, range(8)))
    sequence = attach(coordinator, 2, range(50, 70))
    coordinator.reserve(sequence, 3)
    before = coordinator.stats()

    with pytest.raises(CacheExhaustedError):
        coordinator.reserve(sequence, 9)
    assert (sequence.cursor, table_ids(sequence)) == (3, [[3], [2]])
    assert coordinator.stats() == before
    coordinator.check()


def test_growth_of_one_group_survives_the_others_failure(
    make_layout: Callable[[int], CacheLayout], attach: Start
) -> None:
    """GR-2, KV-6: a pool that grew stays grown, but nobody holds anything of it."""
    grown: list[tuple[int, int]] = []
    allocators = [BlockAllocator(3, 4, 9), BlockAllocator(3, 4)]
    coordinator = Coordinator(make_layout(2), allocators, lambda g, n: grown.append((g, n)))
    sequence = attach(coordinator, 1, range(20))

    with pytest.raises(CacheExhaustedError):
        coordinator.reserve(sequence, 12)
    assert grown == [(0, 6)]
    assert table_ids(sequence) == [[], []]
    assert (coordinator.num_available, coordinator.max_usable_blocks) == (2, 2)
    coordinator.check()


def test_refusals_are_forgotten_when_nobody_runs(
    make_coordinator: MakeCoordinator, attach: Start
) -> None:
    """KV-6: while others run growth is not counted on again; a lone newcomer may try it."""

    def refuse(group: int, num_blocks: int) -> None:
        raise MemoryBudgetError("no room")

    coordinator = make_coordinator(5, max_num_blocks=9, grow=refuse)
    first, second = attach(coordinator, 1, range(8)), attach(coordinator, 2, range(50, 70))
    coordinator.reserve(first, 8)
    with pytest.raises(CacheExhaustedError):
        coordinator.reserve(second, 20)

    coordinator.release(second)
    assert coordinator.num_available == 2
    coordinator.release(first)
    assert coordinator.num_available == 8
    assert coordinator.stats().groups[0].growth_refusals == 1


def test_rollback_keeps_the_blocks(make_coordinator: MakeCoordinator, attach: Start) -> None:
    """SP-1: rejected positions are written over; their blocks stay where they are."""
    coordinator = make_coordinator(16)
    sequence = attach(coordinator, 1, range(4))
    coordinator.reserve(sequence, 4)
    coordinator.commit(sequence, 4)
    coordinator.reserve(sequence, 5)
    coordinator.rewind(sequence, 5)

    assert (sequence.cursor, table_ids(sequence)) == (4, [[1, 2, 3]])
    coordinator.reserve(sequence, 5)
    assert table_ids(sequence) == [[1, 2, 3]]
    coordinator.check()


def test_admission_does_not_count_a_block_twice(
    make_coordinator: MakeCoordinator, prefill: Start
) -> None:
    """SC-2: blocks of the hit itself are not available to the one who hits them."""
    coordinator = make_coordinator(6)
    coordinator.release(prefill(coordinator, 1, range(9)))
    sequence = coordinator.open(SequenceId(2), range(9))
    hit = coordinator.match_prefix(sequence)

    (group,) = coordinator.groups

    assert (group.num_available, group.available_beside(hit.blocks[0])) == (5, 3)
    coordinator.attach(sequence, hit)
    assert coordinator.num_available == 3
    live_hit = match(coordinator, 3, range(9))
    assert group.available_beside(live_hit.blocks[0]) == 3


# -- publication and release -------------------------------------------------------------


def test_only_full_committed_blocks_are_published(
    make_coordinator: MakeCoordinator, attach: Start
) -> None:
    """SP-1: what lies beyond the frontier is not published, nor is a partial block."""
    coordinator = make_coordinator(16)
    sequence = attach(coordinator, 1, range(12))
    coordinator.reserve(sequence, 12)
    coordinator.commit(sequence, 7)

    assert coordinator.publish(sequence) == 1
    assert coordinator.publish(sequence) == 0
    coordinator.commit(sequence, 5)
    assert coordinator.publish(sequence) == 2


def test_decoded_blocks_are_published_too(
    make_coordinator: MakeCoordinator, prefill: Start
) -> None:
    """KV-8: the next turn hits what this one has generated."""
    coordinator = make_coordinator(16)
    sequence = prefill(coordinator, 1, range(6))
    for token in (60, 61, 62):
        coordinator.record(sequence, [token])
        coordinator.reserve(sequence, 1)
        coordinator.commit(sequence, 1)
        coordinator.publish(sequence)
    coordinator.release(sequence)

    assert match(coordinator, 2, [*range(6), 60, 61, 99]).length == 8
    assert match(coordinator, 3, [*range(6), 60, 99, 99]).length == 4


def test_a_duplicate_continues_the_chain(
    make_coordinator: MakeCoordinator, attach: Start
) -> None:
    """KV-3: of two that computed the same, the first publishes and both go on behind it."""
    coordinator = make_coordinator(16, 16)
    first, second = attach(coordinator, 1, range(9)), attach(coordinator, 2, range(13))
    for sequence in (first, second):
        n = len(sequence.tokens)
        coordinator.reserve(sequence, n)
        coordinator.commit(sequence, n)
        coordinator.publish(sequence)

    assert (first.num_published, second.num_published) == (2, 3)
    assert table_ids(second)[0] == [4, 5, 6, 7], "tables only grow"
    hit = match(coordinator, 3, range(13))
    assert [b.id for b in hit.blocks[0]] == [1, 2, 6]
    coordinator.check()


def test_a_sequence_frees_its_tail_first(
    make_coordinator: MakeCoordinator, prefill: Start, attach: Start
) -> None:
    """KV-4: pressure shortens a released prefix from its end."""
    coordinator = make_coordinator(6)
    coordinator.release(prefill(coordinator, 1, range(16)))
    other = attach(coordinator, 2, range(50, 70))
    coordinator.reserve(other, 12)

    assert table_ids(other) == [[5, 4, 3]]
    assert match(coordinator, 3, range(16)).length == 8


def test_release_returns_everything(make_coordinator: MakeCoordinator, prefill: Start) -> None:
    """SC-6: a sequence leaves no reference behind, in no group; its id is free again."""
    coordinator = make_coordinator(16, 8)
    sequence = prefill(coordinator, 1, range(9))
    coordinator.release(sequence)

    assert [g.num_live for g in coordinator.stats().groups] == [0, 0]
    assert coordinator.num_available == 7
    prefill(coordinator, 1, range(9))
    coordinator.check()


def test_a_new_sequence_may_be_released(make_coordinator: MakeCoordinator) -> None:
    """SC-6: a request that is cancelled while it waits holds nothing."""
    coordinator = make_coordinator(16)
    sequence = coordinator.open(SequenceId(1), range(9))
    coordinator.match_prefix(sequence)
    coordinator.release(sequence)

    with pytest.raises(CacheMisuseError, match="the sequence is released"):
        coordinator.release(sequence)


def test_misuse_is_refused(make_coordinator: MakeCoordinator, attach: Start) -> None:
    """KV-8: an id twice, an empty prompt, attaching twice, use after release."""
    coordinator = make_coordinator(16)
    sequence = attach(coordinator, 1, range(9))
    waiting = coordinator.open(SequenceId(2), range(9))
    hit = coordinator.match_prefix(waiting)

    with pytest.raises(CacheMisuseError, match="open already"):
        coordinator.open(SequenceId(1), range(9))
    with pytest.raises(CacheMisuseError, match="at least one token"):
        coordinator.open(SequenceId(3), [])
    with pytest.raises(CacheMisuseError, match="the sequence is attached, not new"):
        coordinator.attach(sequence, hit)
    with pytest.raises(CacheMisuseError, match="the sequence is new, not attached"):
        coordinator.reserve(waiting, 1)
    with pytest.raises(CacheMisuseError, match="not negative"):
        coordinator.reserve(sequence, -1)
    coordinator.release(sequence)
    for use in (coordinator.reserve, coordinator.commit, coordinator.rewind):
        with pytest.raises(CacheMisuseError, match="the sequence is released"):
            use(sequence, 0)
    with pytest.raises(CacheMisuseError, match="the sequence is released"):
        coordinator.publish(sequence)
    with pytest.raises(CacheMisuseError, match="the sequence is released"):
        coordinator.record(sequence, [1])
    coordinator.check()


def test_the_figures(make_coordinator: MakeCoordinator, prefill: Start) -> None:
    """TE-1: hits and each group's blocks, as a snapshot."""
    coordinator = make_coordinator(16, 12)
    prefill(coordinator, 1, range(9))
    coordinator.release(prefill(coordinator, 2, range(13)))
    stats = coordinator.stats()

    assert (stats.prefix_lookups, stats.prefix_hit_tokens) == (2, 8)
    assert [g.num_blocks for g in stats.groups] == [16, 12]
    assert [(g.num_live, g.num_evictable, g.num_free) for g in stats.groups] == [
        (3, 1, 11),
        (3, 1, 7),
    ]


def test_the_layout_must_fit(make_layout: Callable[[int], CacheLayout]) -> None:
    """GR-1: one allocator a group, one block size, a multiple of what the layout asks for."""
    small, large = BlockAllocator(4, 4), BlockAllocator(4, 8)
    eights = CacheLayout([FullAttention(1, 8)], [Owned(0, 0)], block_size_multiple=8)

    with pytest.raises(ValueError, match="2 groups need one allocator each"):
        Coordinator(make_layout(2), [small])
    with pytest.raises(ValueError, match=r"block sizes \[4, 8\]"):
        Coordinator(make_layout(2), [small, large])
    with pytest.raises(ValueError, match="multiple of 8, got 4"):
        Coordinator(eights, [small])


# -- recurrent layers --------------------------------------------------------------------

STATE = RecurrentState([StateTensor("s", (4,))])
RECURRENT = [layer_routes([STATE, FullAttention(1, 8), STATE]), layer_routes([STATE])]


class Boundaries(StateKeeper):
    """States at the ends of some blocks, counted from the head of a chain."""

    def __init__(self, *num_blocks: int) -> None:
        super().__init__(4, 1, max_bytes=64)
        self.kept = num_blocks

    def deepest_boundary(self, hashes: abc.Sequence[BlockHash]) -> int:
        return max((kept for kept in self.kept if kept <= len(hashes)), default=0)

    def state_at(self, block_hash: BlockHash) -> str | None:
        return "a state"


class Forgetful(Boundaries):
    """Says where there are states, and has none of them."""

    def state_at(self, block_hash: BlockHash) -> None:
        return None


class Live:
    """The states of live sequences, as plain values; a `state_manager.LiveStates`."""

    def __init__(self) -> None:
        self.at: dict[SequenceId, tuple[int, object]] = {}
        self.rewound: list[tuple[SequenceId, int]] = []

    def install(self, sequence: SequenceId, position: int, state: object) -> None:
        self.at[sequence] = (position, state)

    def rewind(self, sequence: SequenceId, position: int) -> None:
        self.rewound.append((sequence, position))

    def release(self, sequence: SequenceId) -> None:
        self.at.pop(sequence, None)


def make_recurrent(keeper: StateKeeper | None = None, num_blocks: int = 16) -> Coordinator:
    keeper = keeper or StateKeeper(4, 1, max_bytes=64)
    coordinator = Coordinator(RECURRENT[0], [BlockAllocator(num_blocks, 4)], keeper=keeper)
    coordinator.bind_states(Live())
    return coordinator


def live(coordinator: Coordinator) -> Live:
    assert coordinator.kinds.states is not None
    assert isinstance(coordinator.kinds.states.live, Live)
    return coordinator.kinds.states.live


def state_found(
    coordinator: Coordinator, sequence_id: int, tokens: range | list[int]
) -> object:
    """Return the state that a prompt's hit comes with."""
    return match(coordinator, sequence_id, tokens).found[-1].state


@pytest.mark.parametrize("layout", RECURRENT, ids=["hybrid", "recurrent only"])
def test_keys_without_a_state_are_no_hit(
    layout: CacheLayout, prefill: Start, attach: Start
) -> None:
    """GR-5: where no state is kept no prefix is hit, however many of its blocks are."""
    coordinator = Coordinator(layout, [BlockAllocator(16, 4)])
    prefill(coordinator, 1, range(13))
    second = coordinator.open(SequenceId(2), range(13))
    hit = coordinator.match_prefix(second)

    assert (hit.length, hit.awaited, hit.blocks) == (0, 0, ([],))
    coordinator.attach(second, hit)
    coordinator.reserve(second, 13)
    assert second.num_hit_tokens == 0
    coordinator.check()


@pytest.mark.parametrize("layout", RECURRENT, ids=["hybrid", "recurrent only"])
def test_a_recurrent_model_does_not_wait_for_a_peers_prefix(
    layout: CacheLayout, attach: Start
) -> None:
    """GR-5: blocks in the making are not awaited: nobody has promised a state behind them."""
    coordinator = Coordinator(layout, [BlockAllocator(16, 4)])
    attach(coordinator, 1, range(13))

    assert match(coordinator, 2, range(13)).awaited == 0


@pytest.mark.parametrize(
    ("kept", "length"), [((), 0), ((1,), 4), ((1, 2), 8), ((2, 3), 12), ((2, 4), 8), ((9,), 0)]
)
def test_a_hit_ends_where_a_state_is_kept(
    kept: tuple[int, ...], length: int, prefill: Start
) -> None:
    """GR-5: the deepest boundary that both blocks and states reach."""
    coordinator = Coordinator(RECURRENT[0], [BlockAllocator(16, 4)], keeper=Boundaries(*kept))
    prefill(coordinator, 1, range(13))
    second = coordinator.open(SequenceId(2), [*range(13), 90, 91, 92, 93])
    hit = coordinator.match_prefix(second)

    assert (hit.length, hit.awaited, len(hit.blocks[0])) == (length, length, length // 4)
    coordinator.attach(second, hit)
    coordinator.check()


def test_states_of_others_do_not_shorten_an_attention_models_hit(
    make_layout: Callable[[int], CacheLayout], prefill: Start
) -> None:
    """GR-5: boundaries bind only layouts with recurrent layers."""
    coordinator = Coordinator(make_layout(1), [BlockAllocator(16, 4)], keeper=Boundaries())
    prefill(coordinator, 1, range(13))

    assert match(coordinator, 2, range(13)).length == 12


def test_recurrent_layers_alone_have_one_allocator() -> None:
    """GR-1: without a pool there is still one budget of blocks."""
    with pytest.raises(ValueError, match="one allocator each"):
        Coordinator(RECURRENT[1], [])
    with pytest.raises(ValueError, match="one allocator each"):
        Coordinator(RECURRENT[1], [BlockAllocator(4, 4)] * 2)


def test_a_hit_brings_its_state(prefill: Start, attach: Start) -> None:
    """GR-5: blocks and the state at just their end go to the sequence together."""
    coordinator = make_recurrent()
    first = prefill(coordinator, 1, range(13))
    coordinator.snapshots.reach(first, KeptState(8, "at 8"), shared=True)
    hit = match(coordinator, 2, range(13))

    assert (hit.length, hit.found[-1].state, hit.unbacked) == (8, "at 8", 4)
    second = attach(coordinator, 3, range(13))
    assert (second.cursor, second.latched) == (8, False)
    assert live(coordinator).at[second.id] == (8, "at 8")
    coordinator.reserve(second, 5)
    coordinator.commit(second, 5)
    coordinator.publish(second)
    coordinator.check()


def test_a_state_is_found_by_its_prefix_alone(prefill: Start, attach: Start) -> None:
    """KV-9, GR-5: another salt or another beginning finds no state, whatever comes behind."""
    coordinator = make_recurrent()
    first = prefill(coordinator, 1, range(13), SaltDomain(5))
    coordinator.snapshots.reach(first, KeptState(8, "at 8"), shared=True)

    attach(coordinator, 2, range(13))
    attach(coordinator, 3, [99, *range(1, 13)], SaltDomain(5))
    attach(coordinator, 4, range(13), SaltDomain(5))
    assert live(coordinator).at == {4: (8, "at 8")}


def test_a_prefix_without_its_state_is_latched(prefill: Start) -> None:
    """GR-6: nothing of it is recorded, committed or published before the state is confirmed."""
    coordinator = make_recurrent(Forgetful(2))
    prefill(coordinator, 1, range(13))
    second = coordinator.open(SequenceId(2), range(13))
    coordinator.attach(second, coordinator.match_prefix(second))
    coordinator.reserve(second, 5)
    before = (second.frontier, second.num_published, list(second.tokens))
    for refused in (
        lambda: coordinator.commit(second, 5),
        lambda: coordinator.record(second, [7]),
        lambda: coordinator.publish(second),
    ):
        with pytest.raises(CacheMisuseError, match="the snapshot of its prefix is missing"):
            refused()

    assert (second.frontier, second.num_published, second.tokens) == before
    coordinator.check()
    coordinator.snapshots.confirm(second, KeptState(8, "restored"))
    coordinator.commit(second, 5)
    assert coordinator.publish(second) == 1
    assert live(coordinator).at[second.id] == (8, "restored")


def test_a_latched_sequence_gives_everything_back(prefill: Start) -> None:
    """GR-6: it cannot be used, but it can be released."""
    coordinator = make_recurrent(Forgetful(2))
    coordinator.release(prefill(coordinator, 1, range(13)))
    second = coordinator.open(SequenceId(2), range(13))
    coordinator.attach(second, coordinator.match_prefix(second))
    coordinator.release(second)
    coordinator.check()

    assert second.status is SequenceStatus.RELEASED
    assert coordinator.stats().groups[0].num_live == 0


def test_a_sequence_that_hit_nothing_is_not_latched(attach: Start) -> None:
    """GR-6: at position 0 the state is known: it is zero."""
    assert not attach(make_recurrent(Forgetful(2)), 1, range(13)).latched


def test_a_rung_is_kept_at_once_and_a_later_state_at_the_end(prefill: Start) -> None:
    """GR-5, SD-4: peers find rungs during the prefill; decoding keeps its newest state."""
    coordinator = make_recurrent()
    first = prefill(coordinator, 1, range(17))
    coordinator.snapshots.reach(first, KeptState(4, "rung"), shared=True)
    for boundary in (8, 12):
        coordinator.snapshots.reach(first, KeptState(boundary, f"at {boundary}"), shared=False)

    assert state_found(coordinator, 2, range(17)) == "rung"
    coordinator.release(first)
    hit = match(coordinator, 3, range(17))
    assert (hit.length, hit.found[-1].state) == (12, "at 12")
    assert match(coordinator, 4, range(11)).length == 4  # the state at 8 gave way
    assert first.reached is None


@pytest.mark.parametrize("rung", [True, False])
def test_no_state_is_kept_beyond_the_published_blocks(rung: bool, attach: Start) -> None:
    """GR-5: only the committed frontier is published and snapshotted."""
    coordinator = make_recurrent()
    sequence = attach(coordinator, 1, range(13))
    coordinator.reserve(sequence, 13)
    coordinator.commit(sequence, 7)
    coordinator.publish(sequence)
    coordinator.snapshots.reach(sequence, KeptState(8, "too early"), shared=rung)
    coordinator.release(sequence)

    hit = match(coordinator, 2, range(13))
    assert (hit.length, hit.unbacked) == (0, 4)


def test_a_state_outlives_its_blocks_and_is_no_hit_without_them(prefill: Start) -> None:
    """GR-5: a hit needs both, so it ends at the deepest boundary that has both."""
    coordinator = make_recurrent(num_blocks=7)
    first = prefill(coordinator, 1, range(17))
    for boundary in (8, 16):
        coordinator.snapshots.reach(first, KeptState(boundary, f"at {boundary}"), shared=True)
    coordinator.release(first)
    assert match(coordinator, 2, range(17)).length == 16
    allocator = coordinator.groups[0].allocator
    allocator.free(allocator.allocate(4))  # the last two blocks of the chain go first

    hit = match(coordinator, 3, range(17))
    assert (hit.length, hit.found[-1].state, hit.unbacked) == (8, "at 8", 0)


def test_purge_forgets_every_state(prefill: Start) -> None:
    """GR-5: after a failed step neither blocks nor states are hit."""
    coordinator = make_recurrent()
    first = prefill(coordinator, 1, range(13))
    coordinator.snapshots.reach(first, KeptState(8, "at 8"), shared=True)
    coordinator.release(first)
    coordinator.purge()
    prefill(coordinator, 2, range(13))

    assert match(coordinator, 3, range(13)).length == 0


def test_a_promised_state_is_awaited(prefill: Start, attach: Start) -> None:
    """KV-2, GR-5: whoever wants a prefix waits for the state that a peer is about to keep."""
    coordinator = make_recurrent()
    first = attach(coordinator, 1, range(13))
    coordinator.snapshots.promise(first, [4, 12])

    assert match(coordinator, 2, range(13)).awaited == 12
    assert match(coordinator, 3, range(12)).awaited == 4
    assert match(coordinator, 4, [*range(4), 90]).awaited == 4
    assert match(coordinator, 5, range(90, 103)).awaited == 0
    coordinator.reserve(first, 13)
    coordinator.commit(first, 13)
    coordinator.publish(first)
    before = coordinator.num_publications
    coordinator.snapshots.reach(first, KeptState(4, "at 4"), shared=True)
    hit = match(coordinator, 6, range(12))
    assert (hit.length, hit.awaited) == (4, 4)
    assert coordinator.num_publications > before


def test_a_promise_ends_with_its_sequence(attach: Start) -> None:
    """GR-5: nobody waits for a state that will not come."""
    coordinator = make_recurrent()
    first = attach(coordinator, 1, range(13))
    coordinator.snapshots.promise(first, [12])
    before = coordinator.num_publications
    coordinator.release(first)

    assert match(coordinator, 2, range(13)).awaited == 0
    assert coordinator.num_publications > before


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        ([*range(10), 90, 91, 92], 8),
        ([*range(13), 90], 12),
        ([*range(12)], 8),
        ([*range(3)], 0),
        ([*range(90, 103)], 0),
    ],
)
def test_what_two_prompts_share(other: list[int], shared: int) -> None:
    """GR-5: whole blocks, and of neither prompt the last token."""
    coordinator = make_recurrent()
    one = coordinator.open(SequenceId(1), range(13))

    second = coordinator.open(SequenceId(2), other)
    assert coordinator.snapshots.shared_prefix(one, second) == shared
    assert coordinator.snapshots.shared_prefix(second, one) == shared


def test_an_attention_model_stops_nowhere(
    make_layout: Callable[[int], CacheLayout], attach: Start
) -> None:
    """SD-4: where blocks hold all, a prefill is not cut for anybody's sake."""
    keeper = StateKeeper(4, 1)
    coordinator = Coordinator(make_layout(1), [BlockAllocator(16, 4)], keeper=keeper)
    one, other = (attach(coordinator, i, range(13)) for i in (1, 2))

    assert coordinator.snapshots.boundaries(one) == []
    assert coordinator.snapshots.shared_prefix(one, other) == 0
    hybrid = make_recurrent(keeper)
    assert hybrid.snapshots.boundaries(attach(hybrid, 1, range(13))) == [12]
