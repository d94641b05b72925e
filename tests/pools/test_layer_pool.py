from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import FullAttention, uniform_layout
from neve.metal.attention.pages import GroupPages
from neve.pools.layer_pool import LayerPool

pytestmark = pytest.mark.mlx

SPEC = FullAttention(kv_heads=2, head_dim=4, v_head_dim=6)
NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE = 2, 5, 4
MIB = 1 << 20


def make_pool(dtype: mx.Dtype = mx.float32, num_blocks: int = NUM_BLOCKS) -> LayerPool:
    return LayerPool(SPEC, NUM_LAYERS, num_blocks, BLOCK_SIZE, dtype)


def tokens(seed: int, num_tokens: int) -> tuple[mx.array, mx.array]:
    """Return keys and values of some tokens."""
    key = mx.random.key(seed)
    shapes = (num_tokens, 2, 4), (num_tokens, 2, 6)
    return tuple(mx.random.normal(shape, key=key) for shape in shapes)  # type: ignore[return-value]  # two shapes, two arrays


def write(pool: LayerPool, ordinal: int, slots: list[int], seed: int) -> None:
    k, v = tokens(seed, len(slots))
    places = mx.array(slots)
    pool.write(ordinal, k, v, pool.slots(places // BLOCK_SIZE, places % BLOCK_SIZE))


def joined(blocks: list[list[memoryview]]) -> list[memoryview]:
    return [memoryview(b"".join(block)) for block in blocks]


def contents(pool: LayerPool) -> list[np.ndarray]:
    return [np.array(array) for array in (*pool.group.keys, *pool.group.values)]


slot_lists = st.lists(
    st.integers(0, NUM_BLOCKS * BLOCK_SIZE - 1), min_size=1, max_size=12, unique=True
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, NUM_LAYERS - 1), slot_lists), max_size=4))
def test_writes_touch_their_slots_and_nothing_else(
    writes: list[tuple[int, list[int]]],
) -> None:
    """KV-5: after any writes each layer holds what a plain array would hold."""
    pool = make_pool()
    expected = contents(pool)
    for seed, (ordinal, slots) in enumerate(writes):
        write(pool, ordinal, slots, seed)
        for array, x in zip(
            expected[ordinal::NUM_LAYERS], tokens(seed, len(slots)), strict=True
        ):
            for slot, token in zip(slots, np.array(x), strict=True):
                array[slot // BLOCK_SIZE, :, slot % BLOCK_SIZE] = token

    for actual, wanted in zip(contents(pool), expected, strict=True):
        assert (actual == wanted).all()


def test_a_new_pool_is_zero() -> None:
    """KV-5: a masked slot enters a product with weight 0, so it must hold a number."""
    pool = make_pool()

    assert pool.generation == 0
    assert all((array == 0).all() for array in contents(pool))


def test_its_bytes_are_those_of_the_layout() -> None:
    """KV-7: what the memory account is told is what the arrays take."""
    layout = uniform_layout(SPEC, NUM_LAYERS)

    for dtype in (mx.float32, mx.bfloat16):
        expected = NUM_BLOCKS * layout.block_bytes(0, BLOCK_SIZE, dtype.size)
        assert make_pool(dtype).num_bytes == expected


def test_gathered_tables_are_the_written_tokens() -> None:
    """KV-5: tokens written through a table are read through it, in order."""
    pool, table = make_pool(mx.bfloat16), [4, 1, 3]
    slots = [block * BLOCK_SIZE + i for block in table for i in range(BLOCK_SIZE)]
    write(pool, 1, slots, seed=7)

    gathered = pool.gather(1, pool.pages(mx.array([table, table[::-1]])))

    for pages, x in zip(gathered, tokens(7, 12), strict=True):
        expected = x.astype(mx.bfloat16).swapaxes(0, 1)
        assert mx.array_equal(pages[0], expected)
        assert mx.array_equal(pages[1, :, :BLOCK_SIZE], expected[:, -BLOCK_SIZE:])


def test_blocks_of_every_layer_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV-5: some blocks of all layers are one submission to the device."""
    pool = make_pool()
    for ordinal in range(NUM_LAYERS):
        write(pool, ordinal, list(range(NUM_BLOCKS * BLOCK_SIZE)), seed=ordinal)
    evaluations: list[object] = []
    evaluate = mx.eval
    monkeypatch.setattr(mx, "eval", lambda *a: evaluations.append(a) or evaluate(*a))

    blocks = pool.read_blocks([3, 1])

    assert len(evaluations) == 1
    arrays = contents(pool)
    for block_id, block in zip([3, 1], blocks, strict=True):
        keys_and_values = zip(arrays[:NUM_LAYERS], arrays[NUM_LAYERS:], strict=True)
        expected = [a[block_id].tobytes() for pair in keys_and_values for a in pair]
        assert [page.tobytes() for page in block] == expected


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_blocks_that_are_written_are_those_that_were_read(dtype: mx.Dtype) -> None:
    """CT-3: bytes that leave a pool come back into another one bit by bit, others untouched."""
    source, target = (make_pool(dtype) for _ in range(2))
    for ordinal in range(NUM_LAYERS):
        write(source, ordinal, list(range(NUM_BLOCKS * BLOCK_SIZE)), seed=ordinal)

    target.write_blocks([4, 2], joined(source.read_blocks([1, 3])))

    assert target.read_blocks([4, 2]) == source.read_blocks([1, 3])
    assert all(not any(page) for block in target.read_blocks([0, 1, 3]) for page in block)


def test_restored_blocks_are_written_in_place() -> None:
    """KV-5: a restore touches its blocks and never copies a pool."""
    pool = LayerPool(SPEC, NUM_LAYERS, 4096, BLOCK_SIZE, mx.float32)
    block = pool.read_blocks([1])
    mx.reset_peak_memory()
    before = mx.get_active_memory()

    pool.write_blocks([2], joined(block))
    mx.eval(pool.arrays())

    assert mx.get_peak_memory() - before < pool.num_bytes / 8


def test_growth_keeps_contents_and_starts_a_generation() -> None:
    """KV-5: after growth every block is where it was; new ones are zero."""
    pool = make_pool()
    write(pool, 0, [0, 7, 19], seed=1)
    write(pool, 1, [3, 4], seed=2)
    before = contents(pool)

    pool.grow(NUM_BLOCKS + 3)

    assert (pool.generation, pool.num_blocks) == (1, NUM_BLOCKS + 3)
    for old, new in zip(before, contents(pool), strict=True):
        assert (new[:NUM_BLOCKS] == old).all()
        assert (new[NUM_BLOCKS:] == 0).all()


def test_a_grown_pool_is_written_like_any_other() -> None:
    """KV-5: new blocks take tokens, and old ones still do."""
    pool = make_pool()
    pool.grow(NUM_BLOCKS + 1)
    write(pool, 0, [1, NUM_BLOCKS * BLOCK_SIZE], seed=1)
    k, _ = tokens(1, 2)

    keys = contents(pool)[0]
    assert (keys[NUM_BLOCKS][:, 0] == np.array(k[1])).all()
    assert (keys[0][:, 1] == np.array(k[0])).all()


@pytest.mark.parametrize("num_blocks", [NUM_BLOCKS, NUM_BLOCKS - 1])
def test_a_pool_does_not_shrink(num_blocks: int) -> None:
    """KV-5: growth to no more blocks is refused and changes nothing."""
    pool = make_pool()
    with pytest.raises(ValueError, match=f"not more than {NUM_BLOCKS}"):
        pool.grow(num_blocks)

    assert (pool.generation, pool.num_blocks) == (0, NUM_BLOCKS)


def test_clearing_leaves_zeros() -> None:
    """KV-5: after a failure of the device nothing of what was written remains."""
    pool = make_pool()
    write(pool, 0, [0, 7], seed=1)
    pool.clear()

    assert all((array == 0).all() for array in contents(pool))


@pytest.mark.parametrize(
    "copy", [lambda pool: pool.read_blocks([1]), lambda pool: pool.grow(NUM_BLOCKS + 1)]
)
def test_pages_are_copied_when_kernels_have_written_them(
    copy: Callable[[LayerPool], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV-5, PK-1: MLX does not know of writes in place, so it waits for the last."""
    pool, settled = make_pool(), []
    monkeypatch.setattr(GroupPages, "settle", lambda group: settled.append(group))
    copy(pool)

    assert [id(group) for group in settled] == [id(pool.group)]


@pytest.fixture
def big_pool() -> LayerPool:
    """A pool of 64 MiB: four arrays of 16."""
    return LayerPool(FullAttention(4, 128), 2, 512, 16, mx.float32)


def extra_peak(before: int) -> int:
    return mx.get_peak_memory() - before


def test_a_write_never_copies_the_pool(big_pool: LayerPool) -> None:
    """KV-5: five steps of writes and reads take a small part of one array's memory."""
    blocks, offsets = mx.array([3, 500]), mx.array([0, 15])
    x = mx.ones((2, 4, 128))
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(5):
        pages: list[mx.array] = []
        for ordinal in range(2):
            big_pool.write(ordinal, x, x, big_pool.slots(blocks, offsets))
            pages += big_pool.gather(ordinal, big_pool.pages(blocks[:, None]))
        mx.eval(pages, big_pool.arrays())

    assert big_pool.num_bytes == 64 * MIB
    assert extra_peak(before) < 4 * MIB


def test_growth_takes_little_more_than_both_pools(big_pool: LayerPool) -> None:
    """KV-6: arrays are swapped one by one; never more than old and new pool together."""
    mx.reset_peak_memory()
    rest = mx.get_active_memory() - big_pool.num_bytes

    big_pool.grow(768)

    assert big_pool.num_bytes == 96 * MIB
    assert extra_peak(rest) < (64 + 96 + 1) * MIB
