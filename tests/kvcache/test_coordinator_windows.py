"""Groups with a window inside the transaction over all groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.errors import CacheExhaustedError, CacheMisuseError
from neve.ids import BlockHash, SaltDomain, SequenceId
from neve.kvcache.capacity import UNBOUNDED_TOKENS
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.sequence import Sequence as CacheSequence

SIZE = 4

MakeWindowed = Callable[..., Coordinator]
Start = Callable[..., CacheSequence]


def text(length: int, name: int = 0, shared: int = 0) -> list[int]:
    """Return a text of its own behind `shared` tokens that all texts begin with."""
    return [*range(shared), *(1000 * (name + 1) + i for i in range(length - shared))]


def step(coordinator: Coordinator, sequence: CacheSequence, n: int) -> None:
    """Compute `n` tokens: reserve, commit, publish."""
    coordinator.reserve(sequence, n)
    coordinator.commit(sequence, n)
    coordinator.publish(sequence)


def decode(coordinator: Coordinator, sequence: CacheSequence, tokens: Sequence[int]) -> None:
    """Compute token by token; the first one was sampled at the prompt's end."""
    for token in tokens:
        coordinator.record(sequence, [token])
        step(coordinator, sequence, 1)


def hit_length(coordinator: Coordinator, tokens: Sequence[int], sequence_id: int = 99) -> int:
    """Return what a prompt would hit; nothing stays open."""
    sequence = coordinator.open(SequenceId(sequence_id), tokens)
    length = coordinator.match_prefix(sequence).length
    coordinator.release(sequence)
    return length


def null_entries(sequence: CacheSequence) -> list[int]:
    return [table.num_expired for table in sequence.tables]


def most_resident(window: int, in_flight: int) -> int:
    """Return the bound of GR-3 on one row's blocks."""
    return -(-(window - 1 + in_flight) // SIZE) + 1


def lose(coordinator: Coordinator, group: int, block_hash: BlockHash) -> None:
    """Take one cached block out of a group, as an eviction of just that one would."""
    allocator = coordinator.groups[group].allocator
    block = allocator._table.get(block_hash)
    if block is not None:
        assert block.queue is not None
        allocator._unpublish(block)
        block.queue.remove(block)
        allocator._free.append(block)
    allocator.check()


# -- what a sequence holds ---------------------------------------------------------------


def test_a_prefill_leaves_its_window_and_every_full_block(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-3: blocks wholly outside the window are given back; the others keep their index."""
    coordinator = make_windowed(None, 8)
    sequence = prefill(coordinator, 1, text(30))
    full, window = sequence.tables

    assert (len(full), len(window)) == (8, 8)
    assert null_entries(sequence) == [0, (30 - 8 + 1) // SIZE] == [0, 5]
    assert [block.id for block in window.blocks[:5]] == [0] * 5
    assert [block.hash for block in window.blocks[5:7]] == sequence.chain.hashes[5:7]
    assert (full.num_held, window.num_held) == (8, 3)
    coordinator.check()


@pytest.mark.parametrize(
    ("window", "frontier", "expired"),
    [
        (1, 3, 0),
        (1, 4, 1),
        (1, 5, 1),
        (3, 6, 1),
        (3, 5, 0),
        (4, 7, 1),
        (4, 6, 0),
        (5, 8, 1),
        (5, 7, 0),
        (7, 10, 1),
        (7, 9, 0),
        (8, 15, 2),
    ],
)
def test_a_block_goes_when_no_later_token_sees_it(
    window: int, frontier: int, expired: int, make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-3: exactly the blocks before the first position that the next token sees."""
    coordinator = make_windowed(None, window)
    sequence = prefill(coordinator, 1, text(frontier))

    assert null_entries(sequence) == [0, expired]
    coordinator.check()


def test_what_is_in_flight_does_not_move_the_window(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-3: a step that may be undone, or is not published, still needs its whole window."""
    coordinator = make_windowed(None, 8)
    sequence = prefill(coordinator, 1, text(12))
    before = null_entries(sequence)
    coordinator.record(sequence, [1])
    coordinator.reserve(sequence, 20)

    assert null_entries(sequence) == before == [0, 1]
    coordinator.rewind(sequence, 19)
    coordinator.commit(sequence, 1)
    assert null_entries(sequence) == before
    coordinator.check()
    coordinator.publish(sequence)
    assert null_entries(sequence) == before, "13 tokens: the next one sees position 6"


schedules = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=14
)
window_sizes = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16])


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(window=window_sizes, other=window_sizes, schedule=schedules)
def test_resident_blocks_are_bounded_by_the_window(
    window: int,
    other: int,
    schedule: list[tuple[int, int, bool]],
    make_windowed: MakeWindowed,
    attach: Start,
) -> None:
    """GR-3: whatever is reserved, undone and committed, and however long the text is."""
    in_flight = max(max(n, undone) for n, undone, _ in schedule)
    windows = (window, other + (window == other), None)
    coordinator = make_windowed(*windows, max_slice=in_flight, num_blocks=128)
    sequence = attach(coordinator, 1, text(sum(n for n, _, _ in schedule) + 1))
    for n, undone, publishes_twice in schedule:
        coordinator.reserve(sequence, undone)
        coordinator.rewind(sequence, undone)
        coordinator.reserve(sequence, n)
        for table, size in zip(sequence.tables, windows, strict=True):
            assert size is None or table.num_held <= most_resident(size, in_flight)
            assert len(table) >= -(-sequence.cursor // SIZE), "indices are absolute"
        coordinator.commit(sequence, n)
        coordinator.publish(sequence)
        if publishes_twice:
            coordinator.publish(sequence)
        coordinator.check()
        for group, table in zip(coordinator.groups, sequence.tables, strict=True):
            assert table.num_expired == group.first_needed(sequence.frontier)


def test_a_long_answer_holds_no_more_than_a_short_one(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-3: decoding far beyond the window holds `ceil(window / S) + 1` blocks."""
    coordinator = make_windowed(None, 6, 8, max_slice=1, num_blocks=[64, 8, 8])
    sequence = coordinator.open(SequenceId(1), text(2))
    coordinator.attach(sequence, coordinator.match_prefix(sequence))
    step(coordinator, sequence, 1)
    step(coordinator, sequence, 1)
    held: set[tuple[int, int]] = set()
    for i in range(200):
        decode(coordinator, sequence, [i])
        held.add((sequence.tables[1].num_held, sequence.tables[2].num_held))

    assert max(a for a, _ in held) <= 3
    assert max(b for _, b in held) <= 3
    assert len(sequence.tables[1]) == len(sequence.tables[0]) == 51
    coordinator.check()


# -- one transaction ---------------------------------------------------------------------


@pytest.mark.parametrize("short", [0, 1, 2])
def test_a_shortage_in_one_group_changes_no_other(
    short: int, make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-2: whichever group has too few blocks, tables, cursor and queues stay as they were."""
    sizes = [32, 32, 32]
    sizes[short] = 10
    coordinator = make_windowed(8, 5, None, num_blocks=sizes)
    sequence = prefill(coordinator, 1, text(14))
    before = [list(table.ids) for table in sequence.tables]
    figures = coordinator.stats()

    with pytest.raises(CacheExhaustedError):
        coordinator.reserve(sequence, 60)
    assert [list(table.ids) for table in sequence.tables] == before
    assert (sequence.cursor, sequence.frontier) == (14, 14)
    assert coordinator.stats() == figures
    coordinator.check()


@pytest.mark.parametrize("short", [0, 1, 2])
def test_a_restore_for_which_one_group_has_no_room_changes_no_other(
    short: int, make_windowed: MakeWindowed, attach: Start
) -> None:
    """GR-2: blocks for a restore are held in every group, or in none."""
    sizes = [32, 32, 32]
    sizes[short] = 2
    coordinator = make_windowed(8, 13, None, num_blocks=sizes)
    sequence = attach(coordinator, 1, text(50))
    figures = coordinator.stats()

    with pytest.raises(CacheExhaustedError):
        coordinator.reserve_restore(sequence, 48)
    assert coordinator.stats() == figures
    assert (sequence.cursor, sequence.spare) == (0, {})
    assert [len(table) for table in sequence.tables] == [0, 0, 0]
    coordinator.check()


def test_a_window_gives_way_to_the_next_slice(
    make_windowed: MakeWindowed, attach: Start
) -> None:
    """GR-4: where only one slice fits, the next one takes what it will not see itself.

    The step in flight still reads those blocks, but the device works in order. Their content
    is not published, so boundaries that need it are none.
    """
    coordinator = make_windowed(None, 8, num_blocks=[32, 1 + 5], max_slice=8)
    sequence = attach(coordinator, 1, text(40))
    for slices in range(2):
        coordinator.reserve(sequence, 8)
        assert sequence.tables[1].num_expired == 0, slices
    coordinator.reserve(sequence, 8)

    assert null_entries(sequence) == [0, (16 - 7) // SIZE]
    coordinator.check()
    coordinator.commit(sequence, 8)
    assert coordinator.publish(sequence) == 2
    assert hit_length(coordinator, text(40)) == 0
    coordinator.reserve(sequence, 8)
    for _ in range(3):
        coordinator.commit(sequence, 8)
        coordinator.publish(sequence)
        coordinator.check()
    assert hit_length(coordinator, text(40)) == 32
    assert null_entries(sequence) == [0, (32 - 7) // SIZE]


def test_a_step_that_a_window_gave_way_to_cannot_be_undone(
    make_windowed: MakeWindowed, attach: Start
) -> None:
    """GR-2: a sequence never goes on where it has no window: only release is left."""
    coordinator = make_windowed(None, 8, num_blocks=[32, 1 + 5], max_slice=8)
    sequence = attach(coordinator, 1, text(40))
    for _ in range(3):
        coordinator.reserve(sequence, 8)

    with pytest.raises(CacheMisuseError, match="rewind to position 0"):
        coordinator.rewind(sequence, 24)
    assert (sequence.cursor, sequence.frontier) == (24, 0)
    coordinator.rewind(sequence, 8)
    coordinator.check()
    coordinator.release(sequence)
    coordinator.check()


def test_release_gives_back_the_blocks_of_every_group(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-2: a preempted victim holds nothing in any group, null entries included."""
    coordinator = make_windowed(None, 8, 5)
    sequence = prefill(coordinator, 1, text(40))
    coordinator.reserve(sequence, 9)
    coordinator.release(sequence)

    assert [group.allocator.num_live for group in coordinator.groups] == [0, 0, 0]
    assert [len(table) for table in sequence.tables] == [0, 0, 0]
    coordinator.check()


def test_the_longest_sequence_is_bounded_by_groups_that_keep_everything(
    make_windowed: MakeWindowed,
) -> None:
    """GR-4: a window's pool bounds a sequence only if it holds less than one window."""
    assert make_windowed(None, 8, num_blocks=[11, 5], max_slice=5).max_tokens == 40
    assert make_windowed(None, 8, num_blocks=[11, 4], max_slice=5).max_tokens == 12
    assert make_windowed(8, num_blocks=5, max_slice=5).max_tokens == UNBOUNDED_TOKENS


# -- hits across owners ------------------------------------------------------------------


@pytest.mark.parametrize("windows", [(None, 8), (8, 5, None), (None, 3), (None, 1), (6, None)])
def test_another_owner_hits_the_prompts_boundary(
    windows: tuple[int | None, ...], make_windowed: MakeWindowed, prefill: Start, attach: Start
) -> None:
    """GR-7: the boundary of a joint publication is good for everybody, in every group."""
    coordinator = make_windowed(*windows)
    tokens = text(30)
    first = prefill(coordinator, 1, tokens)
    second = attach(coordinator, 2, tokens)

    assert second.cursor == second.frontier == 28
    for one, other, group in zip(first.tables, second.tables, coordinator.groups, strict=True):
        held = slice(max(one.num_expired, group.first_needed(28)), 7)
        assert other.blocks[held] == one.blocks[held], "the same physical blocks"
        assert other.num_held == 7 - group.first_needed(28)
    coordinator.check()
    coordinator.release(first)
    coordinator.check()
    step(coordinator, second, 2)
    coordinator.check()


def test_interleaved_owners_hit_each_others_boundaries(
    make_windowed: MakeWindowed, attach: Start
) -> None:
    """GR-7: conversations that run at once share what they have in common, and only that."""
    coordinator = make_windowed(None, 8)
    prompts = [text(44, name, shared=20) for name in range(3)]
    first = attach(coordinator, 0, prompts[0])
    step(coordinator, first, 21)
    second = attach(coordinator, 1, prompts[1])
    step(coordinator, second, 5)
    step(coordinator, first, 10)
    third = attach(coordinator, 2, prompts[2])

    assert [s.num_hit_tokens for s in (first, second, third)] == [0, 20, 20]
    for sequence in (first, second, third):
        step(coordinator, sequence, 44 - sequence.cursor)
    coordinator.check()
    assert [hit_length(coordinator, prompt) for prompt in prompts] == [40, 40, 40]


def test_a_shared_head_is_no_hit_without_its_window(
    make_windowed: MakeWindowed, prefill: Start, attach: Start
) -> None:
    """GR-7: a text that shares 30 tokens with one of 100 never gets more than common blocks."""
    coordinator = make_windowed(None, 8, num_blocks=[64, 9], max_slice=12)
    first = attach(coordinator, 1, text(100, 0, shared=30))
    while first.cursor < 100:
        step(coordinator, first, min(12, 100 - first.cursor))
    decode(coordinator, first, range(40))
    other = text(100, 1, shared=30)
    sequence = coordinator.open(SequenceId(2), other)
    hit = coordinator.match_prefix(sequence)

    assert hit.length + hit.unbacked == 28, "the full group holds all that is common"
    assert hit.length < 28, "its window was moved past and evicted"
    coordinator.attach(sequence, hit)
    for n in (30, 40, 30):
        step(coordinator, sequence, min(n, 12))
        coordinator.check()
    assert sequence.chain.hashes[:7] == first.chain.hashes[:7]
    assert not {*sequence.chain.hashes[7:]} & {*first.chain.hashes[7:]}


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    shared=st.integers(0, 60),
    windows=st.sampled_from([(None, 8), (4, 9, None), (None, 1)]),
    chunk=st.integers(1, 40),
)
def test_no_more_is_hit_than_is_common(
    shared: int,
    windows: tuple[int | None, ...],
    chunk: int,
    make_windowed: MakeWindowed,
    attach: Start,
) -> None:
    """GR-7: however two texts part, a hit ends at the last block that they share."""
    coordinator = make_windowed(*windows, max_slice=chunk)
    first = attach(coordinator, 1, text(70, 0, shared))
    while first.cursor < 70:
        step(coordinator, first, min(chunk, 70 - first.cursor))

    assert hit_length(coordinator, text(70, 1, shared)) <= shared // SIZE * SIZE
    assert hit_length(coordinator, text(70, 0, shared)) == 68


def test_domains_do_not_share_a_window(
    make_windowed: MakeWindowed, prefill: Start, attach: Start
) -> None:
    """KV-9: salts keep windows apart as they keep other blocks apart."""
    coordinator = make_windowed(None, 8)
    prefill(coordinator, 1, text(30), SaltDomain(5))

    assert attach(coordinator, 2, text(30)).cursor == 0
    assert attach(coordinator, 3, text(30), SaltDomain(5)).cursor == 28


@pytest.mark.parametrize(("num_blocks", "answer"), [(9, 9), (64, 200)])
def test_a_retry_hits_its_prompt_after_an_answer(
    num_blocks: int, answer: int, make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-7: a prompt's end stays a boundary while the answer moves the window on.

    In a small pool for as long as it is held on to, in a large one while there is room.
    """
    coordinator = make_windowed(None, 8, num_blocks=[128, num_blocks])
    sequence = prefill(coordinator, 1, text(30))
    decode(coordinator, sequence, range(answer))

    assert (coordinator.groups[1].allocator.evictions > 0) == (num_blocks == 9)
    assert sequence.tables[1].num_expired > 6
    assert hit_length(coordinator, text(30)) == 28
    coordinator.release(sequence)
    assert hit_length(coordinator, text(30)) == 28
    coordinator.check()


def test_the_next_turn_goes_on_where_the_last_one_ended(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-7: the end of a conversation is a boundary, wherever in a block its text ends."""
    coordinator = make_windowed(None, 6, 9)
    sequence = prefill(coordinator, 1, text(20))
    for _ in range(9):
        decode(coordinator, sequence, range(1))
        end = sequence.frontier // SIZE * SIZE

        assert hit_length(coordinator, [*sequence.tokens, 1, 2]) == end
    coordinator.release(sequence)
    assert hit_length(coordinator, [*sequence.tokens, 1, 2]) == 28
    coordinator.check()


# -- holes -------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [0, 1, 2])
@pytest.mark.parametrize("index", [4, 5, 6])
def test_a_boundary_without_a_block_of_its_window_is_none(
    group: int, index: int, make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-7: one block lost in one group makes the hit shallower or a miss, never wrong."""
    coordinator = make_windowed(None, 12, 7)
    tokens = text(30)
    sequence = prefill(coordinator, 1, tokens)
    coordinator.release(sequence)
    assert hit_length(coordinator, tokens) == 28
    needed = coordinator.groups[group].first_needed(28)
    block_hash = sequence.chain.hashes[index]
    lose(coordinator, group, block_hash)
    request = coordinator.open(SequenceId(2), tokens)
    hit = coordinator.match_prefix(request)

    assert hit.length == (28 if index < needed else index * SIZE)
    for g, blocks in zip(coordinator.groups, hit.blocks, strict=True):
        first = g.first_needed(hit.length) if hit.length else 0
        held = [block.hash for block in blocks[first:]]
        assert held == sequence.chain.hashes[first : hit.length // SIZE]
    coordinator.attach(request, hit)
    coordinator.check()


@pytest.mark.parametrize(("gone", "length"), [([5], 20), ([6], 24), ([5, 3], 12), ([6, 5], 20)])
def test_half_a_window_is_a_miss_or_a_shallower_hit(
    gone: list[int], length: int, make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-7: the hit ends at the deepest boundary whose window is there as a whole."""
    coordinator = make_windowed(None, 8)
    sequence = prefill(coordinator, 1, text(30))
    coordinator.release(sequence)
    for index in gone:
        lose(coordinator, 1, sequence.chain.hashes[index])
    hit = coordinator.match_prefix(coordinator.open(SequenceId(2), text(30)))

    assert (hit.length, hit.unbacked) == (length, 28 - length)


def test_a_hole_in_the_full_chain_ends_every_hit(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-7: a window whose prefix is gone is of no use to anybody."""
    coordinator = make_windowed(None, 8)
    sequence = prefill(coordinator, 1, text(30))
    coordinator.release(sequence)
    lose(coordinator, 0, sequence.chain.hashes[0])

    assert hit_length(coordinator, text(30)) == 0
    assert coordinator.groups[1].allocator.num_published > 0


def test_a_prefix_that_lost_its_window_is_computed_and_backed_again(
    make_windowed: MakeWindowed, prefill: Start, attach: Start
) -> None:
    """GR-7: the full group finds its blocks published by others; the window gets new ones."""
    coordinator = make_windowed(None, 8, num_blocks=[64, 12])
    sequence = prefill(coordinator, 1, text(30))
    coordinator.release(sequence)
    for index in range(7):
        lose(coordinator, 1, sequence.chain.hashes[index])
    assert hit_length(coordinator, text(30)) == 0
    again = prefill(coordinator, 2, text(30))

    assert again.num_published == 7
    assert hit_length(coordinator, text(30)) == 28
    coordinator.check()
    coordinator.release(again)
    coordinator.check()


def test_a_stale_window_is_refused(make_windowed: MakeWindowed, prefill: Start) -> None:
    """KV-8: a hit whose window was evicted meanwhile takes no reference in any group."""
    coordinator = make_windowed(None, 8)
    sequence = prefill(coordinator, 1, text(30))
    coordinator.release(sequence)
    request = coordinator.open(SequenceId(2), text(30))
    hit = coordinator.match_prefix(request)
    lose(coordinator, 1, sequence.chain.hashes[6])

    with pytest.raises(CacheMisuseError, match="stale or belongs"):
        coordinator.attach(request, hit)
    assert [group.allocator.num_live for group in coordinator.groups] == [0, 0]
    coordinator.check()


def test_purge_forgets_windows_and_what_was_held_on_to(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """KV-8: nothing is hit after a purge, nothing is pinned, and live sequences go on."""
    coordinator = make_windowed(None, 8)
    sequence = prefill(coordinator, 1, text(30))
    coordinator.purge()

    assert hit_length(coordinator, text(30)) == 0
    assert coordinator.kinds.windows is not None
    assert len(coordinator.kinds.windows.pins.snapshots) == 0
    assert all(not group.allocator._pins for group in coordinator.groups)
    decode(coordinator, sequence, range(40))
    coordinator.check()
    coordinator.release(sequence)
    coordinator.check()


# -- writes ------------------------------------------------------------------------------


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 13)), max_size=30))
def test_no_step_writes_where_anybody_else_reads(
    steps: list[tuple[int, int]], make_windowed: MakeWindowed
) -> None:
    """KV-2: a step's slots lie in blocks that one sequence holds and nobody can find."""
    coordinator = make_windowed(None, 6, 9, max_slice=13)
    live: dict[int, CacheSequence] = {}
    for count, (name, n) in enumerate(steps):
        sequence = live.get(name)
        if sequence is None:
            sequence = coordinator.open(SequenceId(count), text(40, name, shared=18))
            coordinator.attach(sequence, coordinator.match_prefix(sequence))
            live[name] = sequence
        n = min(n, 40 - sequence.cursor)
        coordinator.reserve(sequence, n)
        for table in sequence.tables:
            written = table.blocks[sequence.frontier // SIZE : -(-sequence.cursor // SIZE)]
            assert all(block.ref_count == 1 and block.hash is None for block in written)
        coordinator.commit(sequence, n)
        coordinator.publish(sequence)
        coordinator.check()
        if sequence.cursor == 40:
            coordinator.release(live.pop(name))
