from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import RecurrentState, StateTensor
from neve.errors import CacheExhaustedError, CacheMisuseError
from neve.ids import SHARED_DOMAIN, SequenceId
from neve.kvcache.flat_coordinator import FlatCoordinator, FlatSequence
from neve.pools.flat_cache import GROWTH_TOKENS, FlatCache
from neve.scheduler.cache_port import CachePort

SLOT = (0, 0)


def tokens(num_tokens: int, dims: int = 4) -> mx.array:
    return mx.random.normal((num_tokens, 2, dims), key=mx.random.key(num_tokens))


@pytest.mark.mlx
@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_chunks_are_read_as_one_sequence(chunks: list[int]) -> None:
    """KV-10: however a sequence is cut, the cache holds its tokens in order."""
    cache, k, v = FlatCache(), tokens(sum(chunks)), tokens(sum(chunks), dims=6)
    end = 0
    for length in chunks:
        part = slice(end, end + length)
        cache.write(SLOT, k[part], v[part], position=end)
        end += length

        keys, values = cache.read(SLOT, end)
        assert mx.array_equal(keys, k[:end].swapaxes(0, 1))
        assert mx.array_equal(values, v[:end].swapaxes(0, 1))


@pytest.mark.mlx
def test_layers_are_apart() -> None:
    """KV-10: each layer of each group has arrays of its own, in its own width and dtype."""
    cache, k = FlatCache(), tokens(3)
    cache.write((0, 0), k, k, 0)
    cache.write((1, 0), tokens(3, dims=8).astype(mx.bfloat16), k, 0)

    assert cache.read((1, 0), 3)[0].shape == (2, 3, 8)
    assert cache.read((1, 0), 3)[0].dtype == mx.bfloat16
    assert mx.array_equal(cache.read((0, 0), 3)[0], k.swapaxes(0, 1))
    assert len(cache.arrays()) == 4


@pytest.mark.mlx
def test_a_position_is_written_again() -> None:
    """KV-10: what is recomputed replaces what was there and leaves the rest."""
    cache, k = FlatCache(), tokens(5)
    cache.write(SLOT, k, k, 0)
    cache.write(SLOT, k[:2], k[:2], 3)

    assert mx.array_equal(cache.read(SLOT, 5)[0], k[mx.array([0, 1, 2, 0, 1])].swapaxes(0, 1))


@pytest.mark.mlx
def test_arrays_grow_by_large_steps() -> None:
    """KV-10: a token more costs no new array until the capacity is used up."""
    cache, k = FlatCache(), tokens(GROWTH_TOKENS + 1)
    capacities: list[int] = []
    for position, length in [(0, 1), (1, GROWTH_TOKENS - 1), (GROWTH_TOKENS, 1)]:
        part = k[position : position + length]
        cache.write(SLOT, part, part, position)
        capacities.append(cache.arrays()[0].shape[1])

    assert capacities == [GROWTH_TOKENS, GROWTH_TOKENS, 2 * GROWTH_TOKENS]


@pytest.mark.mlx
def test_a_state_is_that_of_one_position() -> None:
    """GR-5: a layer's state is zeros at first, then what was kept, for just its position."""
    spec, cache = RecurrentState([StateTensor("s", (2,))]), FlatCache()
    (fresh,) = cache.read_state(3, spec, 0, mx.bfloat16)
    cache.write_states(3, [(fresh + 1,)], 5)

    assert (fresh.shape, fresh.dtype) == ((1, 2), mx.bfloat16)
    assert cache.read_state(3, spec, 5, mx.bfloat16)[0].tolist() == [[1, 1]]
    assert len(cache.arrays()) == 1
    for position in (0, 4, 6):
        with pytest.raises(CacheMisuseError, match=f"position {position}: its state is .* 5"):
            cache.read_state(3, spec, position, mx.bfloat16)


@pytest.fixture
def coordinator() -> FlatCoordinator:
    """Ten blocks of four tokens."""
    return FlatCoordinator(num_blocks=10, block_size=4)


def opened(coordinator: FlatCoordinator, sequence_id: int) -> FlatSequence:
    sequence = coordinator.open(SequenceId(sequence_id), [1, 2, 3], salt=SHARED_DOMAIN)
    coordinator.attach(sequence, coordinator.match_prefix(sequence))
    return sequence


def test_it_answers_the_scheduler_like_the_paged_one(coordinator: FlatCoordinator) -> None:
    """KV-10: the scheduler does not know which path it drives."""
    port: CachePort = coordinator  # that this line is typed is the point

    assert port.max_usable_blocks == port.num_available == 10


def test_nothing_is_found_and_nothing_published(coordinator: FlatCoordinator) -> None:
    """KV-10: the flat path shares nothing, even between equal prompts."""
    first = opened(coordinator, 1)
    coordinator.reserve(first, 3)
    coordinator.record(first, [1, 2, 3])
    coordinator.commit(first, 3)
    second = coordinator.open(SequenceId(2), [1, 2, 3], salt=SHARED_DOMAIN)
    hit = coordinator.match_prefix(second)

    assert coordinator.publish(first) == 0
    assert coordinator.num_publications == 0
    assert (hit.length, hit.awaited) == (0, 0)
    assert coordinator.admits(hit, 4 * coordinator.num_available, [], 0.0)


def test_a_budget_of_tokens_is_counted_in_blocks(coordinator: FlatCoordinator) -> None:
    """KV-10: sequences take blocks' worth of the budget and give them back."""
    one, other = opened(coordinator, 1), opened(coordinator, 2)
    coordinator.reserve(one, 5)
    coordinator.reserve(other, 4)

    assert coordinator.num_available == 7
    coordinator.release(one)
    assert coordinator.num_available == 9


def test_a_reservation_beyond_the_budget_changes_nothing(coordinator: FlatCoordinator) -> None:
    """KV-10: it holds or it raises; room in the last block costs nothing."""
    one, other = opened(coordinator, 1), opened(coordinator, 2)
    coordinator.reserve(one, 33)
    with pytest.raises(CacheExhaustedError) as caught:
        coordinator.reserve(other, 5)

    assert (caught.value.needed, caught.value.available) == (2, 1)
    assert other.cursor == 0
    coordinator.reserve(one, 3)
    coordinator.reserve(other, 4)
    assert coordinator.num_available == 0


def test_only_reserved_positions_are_committed(coordinator: FlatCoordinator) -> None:
    """KV-8: committing ahead of the cursor is a typed error and changes nothing."""
    sequence = opened(coordinator, 1)
    coordinator.reserve(sequence, 2)
    with pytest.raises(CacheMisuseError, match="only 2 positions are reserved"):
        coordinator.commit(sequence, 3)

    assert sequence.frontier == 0
    coordinator.commit(sequence, 2)
    assert sequence.frontier == 2


def test_a_double_release_is_refused(coordinator: FlatCoordinator) -> None:
    """KV-8: giving a sequence back twice is a typed error, also before it was attached."""
    sequence = coordinator.open(SequenceId(1), [1], salt=SHARED_DOMAIN)
    coordinator.release(sequence)

    with pytest.raises(CacheMisuseError, match="released before"):
        coordinator.release(sequence)
