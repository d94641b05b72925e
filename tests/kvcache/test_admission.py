"""Room for one more sequence, in groups that keep everything and groups that do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.ids import SequenceId
from neve.kvcache.admission import admits, num_lacking
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.prefix import PrefixHit
from neve.kvcache.sequence import Sequence as CacheSequence

SIZE = 4

MakeWindowed = Callable[..., Coordinator]
Start = Callable[..., CacheSequence]


def match(coordinator: Coordinator, tokens: Sequence[int]) -> PrefixHit:
    return coordinator.match_prefix(coordinator.open(SequenceId(99), tokens))


def asks(
    coordinator: Coordinator,
    hit: PrefixHit,
    num_tokens: int,
    wanted: Sequence[tuple[CacheSequence, int]] = (),
    watermark: float = 0.0,
) -> bool:
    return admits(coordinator.groups, hit, num_tokens, wanted, watermark)


@pytest.mark.parametrize(
    ("sizes", "num_tokens", "admitted"),
    [
        ([11, 5], 40, True),
        ([11, 5], 41, False),
        ([12, 5], 41, True),
        ([30, 4], 12, True),
        ([30, 3], 8, True),
    ],
)
def test_every_group_needs_what_it_keeps(
    sizes: list[int], num_tokens: int, admitted: bool, make_windowed: MakeWindowed
) -> None:
    """GR-4: the full group a block for all tokens, a window no more than it ever holds."""
    coordinator = make_windowed(None, 8, num_blocks=sizes, max_slice=1)

    assert asks(coordinator, match(coordinator, range(50)), num_tokens) == admitted


def test_a_window_without_room_admits_nobody(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-4: plenty of blocks in one group make up for no shortage in another."""
    coordinator = make_windowed(None, 8, num_blocks=[64, 5], max_slice=4)
    prefill(coordinator, 1, range(11))

    assert coordinator.groups[0].num_available == 60
    assert not asks(coordinator, match(coordinator, range(500, 520)), 20)


def test_what_a_hit_holds_is_not_needed_again(
    make_windowed: MakeWindowed, prefill: Start
) -> None:
    """GR-4: blocks of the hit are counted as held, and not as available either."""
    coordinator = make_windowed(None, 8, num_blocks=[9, 7], max_slice=1)
    coordinator.release(prefill(coordinator, 1, range(21)))
    hit = match(coordinator, range(21))
    full, window = coordinator.groups

    assert hit.length == 20
    assert (full.num_missing(hit.blocks[0], 32), full.available_beside(hit.blocks[0])) == (3, 3)
    assert window.num_missing(hit.blocks[1], 32) == 2
    assert window.available_beside(hit.blocks[1]) == 4
    assert asks(coordinator, hit, 32)
    assert not asks(coordinator, hit, 33)


def test_others_come_first(make_windowed: MakeWindowed, attach: Start) -> None:
    """SC-4: what running sequences lack is left to them, in each group what it lacks there."""
    coordinator = make_windowed(None, 8, num_blocks=[31, 9], max_slice=1)
    running = attach(coordinator, 1, range(100, 140))
    coordinator.reserve(running, 4)
    full, window = coordinator.groups

    assert num_lacking(full, [(running, 40)]) == 9
    assert num_lacking(window, [(running, 40)]) == 3
    hit = match(coordinator, range(500, 540))
    assert asks(coordinator, hit, 40, [(running, 40)])
    assert asks(coordinator, hit, 80, [(running, 40)])
    assert not asks(coordinator, hit, 81, [(running, 40)])
    assert asks(coordinator, hit, 81)
    assert num_lacking(window, [(running, 1)]) == 0


def test_the_watermark_holds_in_every_group(make_windowed: MakeWindowed) -> None:
    """SC-4: a share of each group's blocks stays available."""
    coordinator = make_windowed(None, 8, num_blocks=[101, 6], max_slice=1)
    hit = match(coordinator, range(50))

    assert asks(coordinator, hit, 40, watermark=0.2)
    assert not asks(coordinator, hit, 40, watermark=0.5), "half of 5 blocks, rounded down, is 2"
    assert asks(coordinator, hit, 4, watermark=0.5)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    window=st.sampled_from([1, 3, 4, 8, 9]),
    sizes=st.tuples(st.integers(2, 14), st.integers(2, 14)),
    length=st.integers(1, 40),
    max_slice=st.integers(1, 9),
)
def test_who_is_admitted_alone_gets_through(
    window: int,
    sizes: tuple[int, int],
    length: int,
    max_slice: int,
    make_windowed: MakeWindowed,
) -> None:
    """GR-4: whoever is admitted to an empty cache that may hold it never runs out of blocks."""
    coordinator = make_windowed(None, window, num_blocks=sizes, max_slice=max_slice)
    sequence = coordinator.open(SequenceId(1), range(length))
    hit = coordinator.match_prefix(sequence)
    if length > coordinator.max_tokens or not asks(coordinator, hit, length):
        return
    coordinator.attach(sequence, hit)
    waiting = 0
    while sequence.cursor < length:
        n = min(max_slice, length - sequence.cursor)
        coordinator.reserve(sequence, n)
        coordinator.commit(sequence, waiting)  # the step before this one
        coordinator.publish(sequence)
        waiting = n
    coordinator.check()

    assert sequence.cursor == length
