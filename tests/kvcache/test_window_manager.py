"""What is held on to of windows, and where they end after a restore."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import FullAttention, SlidingWindow, layer_routes
from neve.contract.sidecar import anchor_grid
from neve.errors import CacheExhaustedError
from neve.ids import BlockHash, SequenceId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.sequence import Sequence as CacheSequence
from neve.kvcache.window_manager import WindowManager
from neve.kvcache.window_retention import WindowRules

SIZE = 4

MakeWindowed = Callable[..., Coordinator]
Start = Callable[..., CacheSequence]


def text(length: int, name: int = 0) -> list[int]:
    return [1000 * (name + 1) + i for i in range(length)]


def keeper(coordinator: Coordinator) -> WindowManager:
    assert coordinator.kinds.windows is not None
    return coordinator.kinds.windows


def step(coordinator: Coordinator, sequence: CacheSequence, n: int) -> None:
    coordinator.reserve(sequence, n)
    coordinator.commit(sequence, n)
    coordinator.publish(sequence)


def decode(coordinator: Coordinator, sequence: CacheSequence, n: int) -> None:
    for token in range(n):
        coordinator.record(sequence, [token])
        step(coordinator, sequence, 1)


def held_on_to(coordinator: Coordinator) -> list[int]:
    """Return the boundaries that are held on to, in publish order, in tokens."""
    return [entry.boundary for entry in keeper(coordinator).pins.snapshots.entries]


def check_pins(coordinator: Coordinator) -> None:
    """Verify that a group's pins are the blocks of all entries' windows, each counted."""
    coordinator.check()
    for group in coordinator.groups:
        expected = Counter[BlockHash]()
        for entry in keeper(coordinator).pins.snapshots.entries if group.visible_tokens else ():
            first = group.first_needed(entry.boundary)
            expected.update(entry.chain[first : entry.num_blocks])
        assert dict(group.allocator._pins) == dict(expected)


def hit_length(coordinator: Coordinator, tokens: Sequence[int]) -> int:
    sequence = coordinator.open(SequenceId(99), tokens)
    length = coordinator.match_prefix(sequence).length
    coordinator.release(sequence)
    return length


# -- which boundaries --------------------------------------------------------------------


def test_layers_without_a_window_need_no_keeper(make_windowed: MakeWindowed) -> None:
    """GR-1: where every block stays there is nothing to move on."""
    assert make_windowed(None, None).kinds.windows is None


def test_a_row_counts_all_windowed_layers_and_the_longest_window(
    make_windowed: MakeWindowed,
) -> None:
    """SD-6: a boundary costs the longest window of all owning layers, 4 bytes an element."""
    layout = layer_routes(
        [
            SlidingWindow(8, 2, 16),
            FullAttention(1, 8),
            SlidingWindow(20, 1, 4),
            SlidingWindow(8, 2, 16),
        ]
    )
    coordinator = Coordinator(layout, [BlockAllocator(64, SIZE) for _ in range(3)])
    sequence = coordinator.open(SequenceId(1), text(49))
    coordinator.attach(sequence, coordinator.match_prefix(sequence))
    for n in (12, 37):
        step(coordinator, sequence, n)
    row_bytes = 4 * (2 * 2 * (16 + 16) + 1 * (4 + 4))
    entries = keeper(coordinator).pins.snapshots.entries

    assert [entry.boundary for entry in entries] == [40, 48]
    assert [entry.num_bytes for entry in entries] == [20 * row_bytes] * 2


@pytest.mark.parametrize(
    ("window", "anchors", "expected"),
    [
        (8, (), [4, 6, 8, 10]),
        (9, (), [3, 6, 9]),
        (3, (), [3, 4, 5, 6, 7, 8, 9, 10]),
        (1, (), [3, 4, 5, 6, 7, 8, 9, 10]),
        (64, (), []),
        (64, (1, 4, 16), [4]),
        (8, (1, 4, 5), [4, 5, 6, 8, 10]),
    ],
)
def test_the_cadence_is_a_window_and_anchors_come_on_top(
    window: int, anchors: tuple[int, ...], expected: list[int], make_windowed: MakeWindowed
) -> None:
    """SD-5: cadence union grid, `max(window, block)` rounded up to blocks, pinned at zero."""
    windows = keeper(make_windowed(None, window)).pins
    windows.want_anchors(anchors)

    assert windows.boundaries(2, 10) == expected


def test_without_a_cold_tier_the_newest_two_are_held_on_to(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """SD-6: PreLadder: the prompt's end and the last cadence; a new conversation takes over."""
    coordinator = make_windowed(None, 8)
    prefill(coordinator, 1, text(30))

    assert keeper(coordinator).pins.rules == WindowRules()
    assert held_on_to(coordinator) == [24, 28]
    check_pins(coordinator)
    prefill(coordinator, 2, text(14, 1))
    assert held_on_to(coordinator) == [8, 12]
    check_pins(coordinator)


def test_a_prompts_end_is_passed_once(make_windowed: MakeWindowed, prefill: Start) -> None:
    """SD-6: the last full block before the prompt's last token, and no later one."""
    coordinator = make_windowed(None, 8)
    sequence = prefill(coordinator, 1, text(13))

    assert held_on_to(coordinator) == [8, 12]
    decode(coordinator, sequence, 6)
    assert held_on_to(coordinator) == [12, 16]
    check_pins(coordinator)


def test_the_newest_prompts_end_stays_however_long_the_answer(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """SD-6, GR-7: what an answer passes does not push out where a retry begins."""
    coordinator = make_windowed(None, 8, num_blocks=40)
    sequence = prefill(coordinator, 1, text(13))
    decode(coordinator, sequence, 60)

    assert held_on_to(coordinator) == [12, 72]
    assert hit_length(coordinator, text(13)) == 12
    check_pins(coordinator)
    prefill(coordinator, 2, text(14, 1))
    assert held_on_to(coordinator) == [8, 12]


def test_one_long_answer_does_not_flush_what_others_may_begin_with(prefill: Start) -> None:
    """GR-7: what a window has moved past goes before the windows at the ends of requests."""
    layout = layer_routes([FullAttention(1, 8), SlidingWindow(8, 1, 8)])
    coordinator = Coordinator(layout, [BlockAllocator(80, SIZE), BlockAllocator(16, SIZE)])
    coordinator.release(prefill(coordinator, 1, text(30)))
    sequence = prefill(coordinator, 2, text(9, 1))
    decode(coordinator, sequence, 150)

    assert coordinator.groups[1].allocator.evictions > 20
    assert hit_length(coordinator, text(30)) == 28
    check_pins(coordinator)


def test_a_prompt_that_fills_its_last_block_ends_before_it(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """KV-8: a retry computes its last token, so its boundary lies before the last block."""
    coordinator = make_windowed(None, 16)
    prefill(coordinator, 1, text(12))

    assert held_on_to(coordinator) == [8]
    assert hit_length(coordinator, text(12)) == 8


@pytest.mark.parametrize("chunk", [1, 7, 16, 48])
def test_what_is_held_on_to_does_not_follow_the_slices(
    chunk: int, make_windowed: MakeWindowed, attach: Start
) -> None:
    """SD-5: however a prefill is cut it passes the same boundaries, and is split at none."""
    coordinator = make_windowed(None, 16, 6, max_slice=chunk)
    keeper(coordinator).pins.want_anchors((1, 4, 9))
    sequence = attach(coordinator, 1, text(48))
    while sequence.cursor < 48:
        step(coordinator, sequence, min(chunk, 48 - sequence.cursor))
        check_pins(coordinator)

    assert sorted(held_on_to(coordinator)) == [4, 16, 36, 44, 48]
    assert [b for b in range(4, 49, 4) if keeper(coordinator).blocks_at(sequence.chain, b // 4)]


def test_decoding_publishes_anchors_too(make_windowed: MakeWindowed, prefill: Start) -> None:
    """SD-5: an anchor that a prompt did not reach is held on to when the answer passes it."""
    coordinator = make_windowed(None, 1024, num_blocks=128, block_size=16)
    keeper(coordinator).pins.want_anchors(anchor_grid(1, 4))
    sequence = prefill(coordinator, 1, text(200))

    assert held_on_to(coordinator) == [64, 192]
    decode(coordinator, sequence, 60)
    assert held_on_to(coordinator) == [64, 192, 256]
    check_pins(coordinator)


@pytest.mark.parametrize("chunk", [2048, 8140])
def test_the_seeds_example_through_the_cache(chunk: int) -> None:
    """SD-6: a prompt of 8140 tokens of the 12B leaves {64, 256, 1024, 4096, 7168, 8128}."""
    layout = layer_routes([SlidingWindow(1024, 8, 256)] * 40 + [FullAttention(1, 8)])
    coordinator = Coordinator(
        layout, [BlockAllocator(600, 16) for _ in range(2)], max_slice=chunk
    )
    keeper(coordinator).pins.want_anchors(anchor_grid(1, 4))
    sequence = coordinator.open(SequenceId(1), text(8140))
    coordinator.attach(sequence, coordinator.match_prefix(sequence))
    while sequence.cursor < 8140:
        step(coordinator, sequence, min(chunk, 8140 - sequence.cursor))

    assert keeper(coordinator).pins.rules.max_snapshots == 6
    assert held_on_to(coordinator) == [64, 256, 1024, 4096, 7168, 8128]
    assert keeper(coordinator).pins.snapshots.num_bytes == 64 * 655_360 * (1 + 4 + 4 * 16)
    check_pins(coordinator)


def test_one_prefix_is_held_on_to_once(make_windowed: MakeWindowed) -> None:
    """SD-6: the newest conversation that passed a boundary has it, and its age."""
    coordinator = make_windowed(None, 8)
    sequences = [coordinator.open(SequenceId(i), text(18), owner=f"o{i}") for i in range(2)]
    for sequence in sequences:
        coordinator.attach(sequence, coordinator.match_prefix(sequence))
    for sequence in sequences:
        step(coordinator, sequence, 18)
        check_pins(coordinator)
    entries = keeper(coordinator).pins.snapshots.entries

    assert [(entry.owner, entry.boundary) for entry in entries] == [("o1", 8), ("o1", 16)]
    for sequence in sequences:
        coordinator.release(sequence)
        check_pins(coordinator)


def test_clearing_takes_every_pin_back(make_windowed: MakeWindowed, prefill: Start) -> None:
    """KV-8: held on to is nothing, and blocks that wait go on waiting."""
    coordinator = make_windowed(None, 8)
    prefill(coordinator, 1, text(30))
    before = coordinator.stats()
    keeper(coordinator).pins.clear()

    assert held_on_to(coordinator) == []
    assert coordinator.stats() == before
    check_pins(coordinator)


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 11)), max_size=30),
    anchors=st.sampled_from([(), (1, 4), (1, 2, 3, 5)]),
)
def test_pins_are_the_windows_that_are_held_on_to(
    steps: list[tuple[int, int]], anchors: tuple[int, ...], make_windowed: MakeWindowed
) -> None:
    """SD-6: after any mixture of requests each entry's blocks are pinned once."""
    coordinator = make_windowed(None, 8, 5, num_blocks=48, max_slice=11)
    if anchors:
        keeper(coordinator).pins.want_anchors(anchors)
    live: dict[int, CacheSequence] = {}
    for count, (name, n) in enumerate(steps):
        if name not in live:
            live[name] = coordinator.open(SequenceId(count), text(37, name % 2))
            coordinator.attach(live[name], coordinator.match_prefix(live[name]))
        sequence = live[name]
        step(coordinator, sequence, min(n, 37 - sequence.cursor))
        check_pins(coordinator)
        assert len(held_on_to(coordinator)) <= keeper(coordinator).pins.rules.max_snapshots
        if sequence.cursor == 37:
            coordinator.release(live.pop(name))
            check_pins(coordinator)


# -- what they are worth -----------------------------------------------------------------


def test_a_wish_is_no_hit(make_windowed: MakeWindowed, prefill: Start) -> None:
    """SD-7: an entry whose blocks are gone decides nothing; blocks without an entry do."""
    coordinator = make_windowed(None, 8)
    sequence = prefill(coordinator, 1, text(30))
    coordinator.release(sequence)
    keeper(coordinator).pins.clear()
    assert hit_length(coordinator, text(30)) == 28

    coordinator.groups[1].allocator.purge()
    keeper(coordinator).pins.keep("", sequence.chain, 7)
    assert hit_length(coordinator, text(30)) == 0
    assert keeper(coordinator).blocks_at(sequence.chain, 7) is None
    check_pins(coordinator)


def test_pinned_windows_are_evicted_after_what_was_moved_past(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """SD-6: an anchor's blocks outlive those between anchors, which nobody holds on to."""
    coordinator = make_windowed(None, 16, num_blocks=[64, 13])
    keeper(coordinator).pins.want_anchors((1, 4))
    sequence = prefill(coordinator, 1, text(48))
    allocator = coordinator.groups[1].allocator
    before = {
        index for index in range(12) if keeper(coordinator).blocks_at(sequence.chain, index + 1)
    }
    allocator.free(allocator.allocate(allocator.num_free + len(allocator._expired)))

    assert before == set(range(12))
    assert held_on_to(coordinator) == [4, 16, 44, 48]
    assert all(keeper(coordinator).blocks_at(sequence.chain, b // 4) for b in (4, 16, 44, 48))
    assert not any(keeper(coordinator).blocks_at(sequence.chain, n) for n in (8, 9, 10))
    check_pins(coordinator)


def test_what_a_window_has_just_moved_past_is_still_its_end(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-7: behind a boundary the window may pass a block that the boundary needs.

    When the sequence ends, that block waits like the others, not in front of them.
    """
    coordinator = make_windowed(None, 6)
    sequence = prefill(coordinator, 1, text(27))
    keeper(coordinator).pins.clear()
    decode(coordinator, sequence, 3)
    allocator = coordinator.groups[1].allocator
    needed = sequence.chain.hashes[5:7]

    assert sequence.tables[1].num_expired == 6
    assert allocator._table[needed[0]].queue is allocator._expired
    coordinator.release(sequence)
    assert [allocator._table[h].queue for h in needed] == [allocator._evictable] * 2
    check_pins(coordinator)


def test_deepest_and_find_agree(make_windowed: MakeWindowed, prefill: Start) -> None:
    """SD-7: the deepest boundary at or below a limit at which all windows are held."""
    coordinator = make_windowed(None, 8, 5)
    chain = prefill(coordinator, 1, text(30)).chain
    windows = keeper(coordinator)

    assert [windows.deepest(chain, limit) for limit in range(8)] == list(range(8))
    assert windows.blocks_at(chain, 7) == {
        1: coordinator.groups[1].find_blocks(chain, 5, 2),
        2: coordinator.groups[2].find_blocks(chain, 6, 1),
    }
    gone = coordinator.groups[2].allocator._table[chain.hashes[5]]
    coordinator.groups[2].allocator._unpublish(gone)
    assert windows.blocks_at(chain, 6) is None
    assert [windows.deepest(chain, limit) for limit in (5, 6, 7)] == [5, 5, 7]


# -- restores ----------------------------------------------------------------------------

LAYOUTS = [(None, 8), (8, None), (None, 8, 5), (None, 9), (None, 3), (None, 1), (None, 64)]


def begin(
    coordinator: Coordinator, sequence_id: int, tokens: Sequence[int], num_tokens: int
) -> CacheSequence:
    """Attach a sequence to its hit and reserve what a restore up to `num_tokens` needs."""
    sequence = coordinator.open(SequenceId(sequence_id), tokens)
    coordinator.attach(sequence, coordinator.match_prefix(sequence))
    coordinator.reserve_restore(sequence, num_tokens - sequence.cursor)
    coordinator.check()
    return sequence


def finish(coordinator: Coordinator, sequence: CacheSequence, boundary: int) -> None:
    """Commit and publish what was restored, and undo the rest."""
    coordinator.commit(sequence, boundary - sequence.frontier)
    coordinator.publish(sequence)
    coordinator.rewind(sequence, sequence.cursor - sequence.frontier)
    check_pins(coordinator)


def live_blocks(coordinator: Coordinator) -> list[int]:
    return [group.allocator.num_live for group in coordinator.groups]


@pytest.mark.parametrize("windows", LAYOUTS)
@pytest.mark.parametrize("boundary", [24, 16, 4])
def test_a_restore_ends_where_its_window_was_found(
    boundary: int, windows: tuple[int | None, ...], make_windowed: MakeWindowed
) -> None:
    """SD-1: at the end that was proposed or a shallower one; what is not needed goes back."""
    coordinator = make_windowed(*windows)
    sequence = begin(coordinator, 1, text(30), 24)
    installed = keeper(coordinator).install(sequence, boundary)
    finish(coordinator, sequence, boundary)

    assert sequence.spare == {}
    assert (sequence.cursor, sequence.frontier, sequence.num_published) == (
        boundary,
        boundary,
        boundary // SIZE,
    )
    for group, table in zip(coordinator.groups, sequence.tables, strict=True):
        first = group.first_needed(boundary)
        if group.visible_tokens:
            assert table.num_expired == first
            assert table.ids[first:] == installed[group.index]
            assert len(table) == boundary // SIZE
        assert group.allocator.num_live == table.num_held
    assert hit_length(coordinator, text(30)) == boundary
    step(coordinator, sequence, 30 - boundary)
    check_pins(coordinator)
    assert hit_length(coordinator, text(30)) == 28
    coordinator.release(sequence)
    check_pins(coordinator)


@pytest.mark.parametrize("windows", LAYOUTS)
def test_a_restore_that_finds_no_window_gives_everything_back(
    windows: tuple[int | None, ...], make_windowed: MakeWindowed
) -> None:
    """SD-1: without a sidecar nothing of the prefix counts, and it is computed."""
    coordinator = make_windowed(*windows)
    sequence = begin(coordinator, 1, text(30), 24)
    finish(coordinator, sequence, 0)

    assert sequence.spare == {}
    held = [table.num_held for table in sequence.tables]
    assert live_blocks(coordinator) == held
    assert [n for n, w in zip(held, windows, strict=True) if w] == [0] * (len(windows) - 1)
    assert hit_length(coordinator, text(30)) == 0
    step(coordinator, sequence, 30)
    check_pins(coordinator)
    assert hit_length(coordinator, text(30)) == 28


@pytest.mark.parametrize("windows", LAYOUTS)
@pytest.mark.parametrize("installed", [False, True])
def test_a_restore_that_is_given_up_leaves_nothing(
    installed: bool, windows: tuple[int | None, ...], make_windowed: MakeWindowed
) -> None:
    """GR-2: a request that is cancelled or preempted while it waits holds no block any more."""
    coordinator = make_windowed(*windows)
    sequence = begin(coordinator, 1, text(30), 24)
    if installed:
        keeper(coordinator).install(sequence, 16)
    coordinator.release(sequence)

    assert live_blocks(coordinator) == [0] * len(windows)
    assert hit_length(coordinator, text(30)) == 0
    check_pins(coordinator)
    again = begin(coordinator, 1, text(30), 24)
    keeper(coordinator).install(again, 24)
    finish(coordinator, again, 24)
    assert hit_length(coordinator, text(30)) == 24


@pytest.mark.parametrize(
    ("boundary", "kept", "installed"),
    [(20, [3], [4]), (24, [], [4, 5]), (28, [], [5, 6])],
)
def test_blocks_of_the_window_that_memory_had_stay(
    boundary: int, kept: list[int], installed: list[int], make_windowed: MakeWindowed
) -> None:
    """SD-1: a restore behind a hit writes the rest of the window alone, the last blocks."""
    coordinator = make_windowed(None, 8)
    first = coordinator.open(SequenceId(1), text(17))
    coordinator.attach(first, coordinator.match_prefix(first))
    step(coordinator, first, 17)
    hot = {index: first.tables[1].blocks[index] for index in (2, 3)}
    sequence = begin(coordinator, 2, text(40), 28)

    assert sequence.num_hit_tokens == 16
    ids = keeper(coordinator).install(sequence, boundary)[1]
    finish(coordinator, sequence, boundary)
    table = sequence.tables[1]
    assert [table.blocks[index] for index in kept] == [hot[index] for index in kept]
    assert [table.blocks[index].id for index in installed] == ids
    assert table.num_expired == boundary // SIZE - 2
    assert [block.ref_count for block in hot.values()] == [
        1 + (index in kept) if index in (2, 3) else 0 for index in hot
    ]
    coordinator.release(first)
    check_pins(coordinator)
    step(coordinator, sequence, 40 - boundary)
    check_pins(coordinator)


def test_blocks_that_a_restore_overwrites_are_nobody_elses(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """KV-2: what is installed goes into blocks that only this sequence holds."""
    coordinator = make_windowed(None, 8)
    prefill(coordinator, 1, text(17))
    sequence = begin(coordinator, 2, text(40), 28)
    ids = keeper(coordinator).install(sequence, 28)[1]
    blocks = {block.id: block for block in sequence.tables[1].blocks}

    assert [(blocks[i].ref_count, blocks[i].hash) for i in ids] == [(1, None)] * 2


def test_a_boundary_that_a_restore_jumped_over_is_not_held_on_to(
    make_windowed: MakeWindowed,
) -> None:
    """SD-6: of a restored prefix only the end has its window; wishes for others cost places."""
    coordinator = make_windowed(None, 8)
    keeper(coordinator).pins.want_anchors((1, 4))
    sequence = begin(coordinator, 1, text(50), 44)
    keeper(coordinator).install(sequence, 44)
    finish(coordinator, sequence, 44)

    assert held_on_to(coordinator) == []
    step(coordinator, sequence, 6)
    assert held_on_to(coordinator) == [48]


def test_room_for_a_restore_is_asked_for_in_every_group_first(
    make_windowed: MakeWindowed,
) -> None:
    """GR-2: if the window's group has too few blocks, the full group hands out none."""
    coordinator = make_windowed(None, 16, num_blocks=[32, 4])
    sequence = coordinator.open(SequenceId(1), text(50))
    coordinator.attach(sequence, coordinator.match_prefix(sequence))

    with pytest.raises(CacheExhaustedError):
        coordinator.reserve_restore(sequence, 48)
    assert (sequence.cursor, live_blocks(coordinator)) == (0, [0, 0])
    coordinator.check()


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    windows=st.sampled_from(LAYOUTS),
    hot=st.integers(0, 60),
    proposed=st.integers(1, 15),
    share=st.floats(0, 1),
    outcome=st.sampled_from(["installed", "installed", "nothing", "released"]),
)
def test_any_restore_leaves_a_cache_that_is_sound(
    windows: tuple[int | None, ...],
    hot: int,
    proposed: int,
    share: float,
    outcome: str,
    make_windowed: MakeWindowed,
) -> None:
    """SD-1: behind any hit, to any boundary or none, the bounds of a window hold all along."""
    coordinator = make_windowed(*windows, max_slice=64)
    tokens = text(80)
    if hot:
        first = coordinator.open(SequenceId(1), tokens[:hot])
        coordinator.attach(first, coordinator.match_prefix(first))
        step(coordinator, first, hot)
        coordinator.release(first)
    end = min(hot // SIZE + proposed, 19)
    sequence = begin(coordinator, 2, tokens, end * SIZE)
    start = sequence.frontier // SIZE
    for group, (window, table) in enumerate(zip(windows, sequence.tables, strict=True)):
        spare = sequence.spare.get(group, [])
        most = -(-(window - 1) // SIZE) if window else end
        assert len(spare) <= most
        assert table.num_held <= max(most, 1)
    boundary = sequence.frontier
    if outcome == "installed" and end > start:
        boundary = SIZE * min(end, start + 1 + int(share * (end - start)))
        keeper(coordinator).install(sequence, boundary)
    if outcome == "released":
        coordinator.release(sequence)
    else:
        finish(coordinator, sequence, boundary)
        assert hit_length(coordinator, tokens) >= boundary
        for n in (5, 1, 1, 80 - boundary - 7):
            step(coordinator, sequence, min(max(n, 0), 80 - sequence.cursor))
            check_pins(coordinator)
            for group, table in zip(coordinator.groups, sequence.tables, strict=True):
                assert table.num_expired == group.first_needed(sequence.frontier)
        coordinator.release(sequence)
    check_pins(coordinator)
    assert live_blocks(coordinator) == [0] * len(windows)
