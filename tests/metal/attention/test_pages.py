from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.metal.attention import pages
from neve.metal.attention.pages import (
    Layout,
    Pages,
    gather_pages,
    gather_pages_kernel,
    gather_pages_reference,
    random_pages,
)
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(emulator.compiler() is None, reason="no g++: kernels cannot run here"),
]

DTYPES = [mx.float32, mx.float16, mx.bfloat16]
LAYOUT = Layout(heads=2, size=4, dims=24, v_dims=16)
TABLES = mx.array([[9, 9, 9, 9, 9], [3, 1, 4, 2, 99], [0, -1, 5, 1, 99]], mx.int32)


def row(index: int) -> mx.array:
    return mx.array([index], mx.int32)


def one_by_one(pool: mx.array, index: int, first: int, num_keys: int) -> mx.array:
    """Return what a gather should, token by token."""
    table: Any = TABLES.tolist()
    size = pool.shape[2]
    tokens: list[mx.array] = []
    for t in range(first * size, first * size + num_keys):
        entry = table[index][t // size]
        place = pool[entry, :, t % size] if entry > 0 else mx.zeros_like(pool[0, :, 0])
        tokens.append(place)
    return mx.stack(tokens, axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gather_puts_pages_one_after_the_other(dtype: mx.Dtype) -> None:
    """PK-1: the kernel copies keys and values bit by bit, and so does its reference."""
    held = random_pages(dtype, 6, LAYOUT)
    with launch.using(emulator.HostBackend()):
        got = gather_pages(held, TABLES, row(1), first_block=1, num_keys=9)
    want = gather_pages_reference(held, TABLES, row(1), first_block=1, num_keys=9)

    assert got[0].shape == (2, 9, 24)
    assert got[1].shape == (2, 9, 16)
    for pool, a, b in zip((held.keys, held.values), got, want, strict=True):
        assert a.dtype == dtype
        assert mx.array_equal(a, b)
        assert mx.array_equal(a, one_by_one(pool, 1, 1, 9))


@settings(max_examples=15, deadline=None)
@given(data=st.data(), index=st.integers(1, 2), first=st.integers(0, 3))
def test_any_part_of_a_table_is_gathered(data, index: int, first: int) -> None:
    """PK-1: no entry behind the part that is asked for is read, and null pages are zeros."""
    num_keys = data.draw(st.integers(1, 16 - 4 * first))
    held = random_pages(mx.float32, 6, LAYOUT)
    poisoned = mx.array(held.keys)
    poisoned[0] = mx.nan
    held = Pages(poisoned, held.values, held.fence)
    with launch.using(emulator.HostBackend()):
        got = gather_pages_kernel(
            held, TABLES, row(index), first_block=first, num_keys=num_keys
        )

    for pool, a in zip((held.keys, held.values), got, strict=True):
        assert mx.array_equal(a, one_by_one(pool, index, first, num_keys))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gather_passes_its_self_check(dtype: mx.Dtype) -> None:
    """PK-1: what a GPU is asked at a gather's first use, the host answers rightly."""
    with launch.using(emulator.HostBackend(orders=(0,))):
        pages._check(dtype, LAYOUT)


def test_a_self_check_notices_a_wrong_kernel() -> None:
    """PK-1: a kernel that reads the wrong page does not pass."""

    def neighbour(_: str, body: str) -> str:
        return body.replace("ip[1] + t / S]", "ip[1] + t / S] % 4")

    with (
        launch.using(emulator.HostBackend(orders=(0,), rewrite=neighbour)),
        pytest.raises(dispatch.KernelMismatchError),
    ):
        pages._check(mx.float32, LAYOUT)


def test_odd_heads_are_gathered_by_operations() -> None:
    """PK-1: what the kernel cannot take is counted as operations, and right."""
    held = random_pages(mx.float32, 6, Layout(2, 4, 12, 8))
    before = dispatch.counts().get("gather_pages:ops", 0)
    with launch.using(emulator.HostBackend()):
        keys, _ = gather_pages(held, TABLES, row(1), first_block=0, num_keys=7)

    assert dispatch.counts()["gather_pages:ops"] == before + 1
    assert mx.array_equal(keys, one_by_one(held.keys, 1, 0, 7))


def test_pages_settle_where_writes_are_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """PK-1: before operations read, the last write is waited for; elsewhere it has happened."""
    held, waited = random_pages(mx.float32, 6, LAYOUT), []
    held.settle()
    with launch.using(emulator.HostBackend()):
        held.settle()
        monkeypatch.setattr(mx, "eval", waited.append)
        held.settle()

    assert waited == []
    with launch.using(launch.MlxBackend("test", dict, "mkx_metal.h")):
        held.settle()
    assert [id(array) for array in waited] == [id(held.fence)]


@pytest.mark.parametrize("lazy", [False, True])
def test_pages_in_a_trace_cannot_settle(lazy: bool) -> None:
    """PK-1: a step that would have to wait half-way is no trace, which is an error there."""
    held = random_pages(mx.float32, 6, LAYOUT)
    backend = launch.MlxBackend("test", dict, "mkx_metal.h")

    def read(fence: mx.array) -> mx.array:
        Pages(held.keys, held.values, fence).settle()
        return fence + 1

    if not lazy:
        assert mx.compile(read)(held.fence).item() == 1
        return
    with launch.using(backend), pytest.raises(ValueError, match="eval"):
        mx.compile(read)(held.fence)
