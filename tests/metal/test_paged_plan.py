from __future__ import annotations

from typing import Any

import mlx.core as mx
from hypothesis import given
from hypothesis import strategies as st

from neve.metal import paged_plan
from neve.metal.paged_plan import Shape, least_rounds, num_splits, template_for
from neve.metal.pages import Layout

DIMS = st.integers(1, 32).map(lambda n: 8 * n) | st.integers(17, 32).map(lambda n: 16 * n)


@st.composite
def shapes(draw) -> Shape:
    page = Layout(draw(st.integers(1, 16)), draw(st.sampled_from([8, 16, 32])), draw(DIMS), 64)
    dtype = draw(st.sampled_from([mx.float32, mx.float16, mx.bfloat16]))
    shape = Shape(dtype, page, draw(st.integers(1, 71)), capped=False, sunk=False)
    length = draw(st.none() | st.integers(2, 16))
    return shape if length is None else shape.tiled(length)


@given(shapes())
def test_a_plan_covers_each_head_and_element(shape: Shape) -> None:
    """PK-1: lanes hold a whole token, threadgroups all pairs of a query and a head."""
    plan: Any = template_for(shape, single=True)
    vector, lanes, pairs = plan["VEC"], plan["LPT"], plan["GT"]
    groups = shape.threadgroups // shape.page.heads

    assert shape.unsupported is None
    assert lanes * vector >= shape.page.dims
    assert 32 % lanes == 0
    assert lanes % plan["U"] == 0
    assert pairs * vector <= 64
    assert groups * plan["HS"] * pairs >= shape.pairs
    assert paged_plan.SIMDGROUPS % plan["HS"] == 0


@given(shapes(), st.integers(1, 64), st.integers(1, 2**20))
def test_splits_are_worth_their_threadgroup(shape: Shape, tiles: int, longest: int) -> None:
    """PK-1: a context is cut into pieces of 128 tokens and more, or not at all."""
    splits = num_splits(shape, tiles, longest)

    assert 1 <= splits <= paged_plan.MOST_SPLITS
    assert splits == 1 or longest // splits >= paged_plan.SHORTEST_SPLIT
    assert splits == 1 or longest > paged_plan.UNSPLIT
    assert least_rounds(shape) >= 1


def test_a_single_long_context_keeps_all_processors_busy() -> None:
    """PK-1: what one threadgroup a key head would take long for is shared by many."""
    shape = Shape(mx.bfloat16, Layout(8, 16, 128, 128), 4, capped=False, sunk=False)

    assert num_splits(shape, 1, 64) == 1
    assert 8 * num_splits(shape, 1, 2**17) > 2 * paged_plan.PROCESSORS


@given(st.integers(1, 64), st.integers(600, 2**17))
def test_the_last_wave_is_never_nearly_empty(tiles: int, longest: int) -> None:
    """PK-1: no other number of splits would take much less time than the one that is chosen."""
    shape = Shape(mx.bfloat16, Layout(8, 16, 128, 128), 4, capped=False, sunk=False)
    at_once = paged_plan.PROCESSORS * shape.resident

    def time(splits: int) -> float:
        return -(-tiles * shape.threadgroups * splits // at_once) / splits

    most = min(longest // paged_plan.SHORTEST_SPLIT, paged_plan.MOST_SPLITS)
    chosen = num_splits(shape, tiles, longest)

    assert time(chosen) <= paged_plan.SLACK * min(time(n) for n in range(1, most + 1))
    assert all(time(n) > time(chosen) for n in range(1, chosen))


def test_what_no_kernel_takes_is_said() -> None:
    """PK-1: a head that lanes cannot share evenly has no kernel, and the reason is given."""
    odd = Shape(mx.float32, Layout(1, 16, 12, 8), 1, capped=False, sunk=False)
    wide = Shape(mx.float32, Layout(1, 16, 576, 512), 1, capped=False, sunk=False)
    whole = Shape(mx.int32, Layout(1, 16, 64, 64), 1, capped=False, sunk=False)

    assert "12 and 8" in str(odd.unsupported)
    assert "576 and 512" in str(wide.unsupported)
    assert "int32" in str(whole.unsupported)
