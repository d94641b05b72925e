from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.metal.attention import paged_plan
from neve.metal.attention.head_shape import Making
from neve.metal.attention.paged_plan import (
    STAGED,
    Shape,
    least_rounds,
    makes_heads,
    num_splits,
    template_for,
)
from neve.metal.attention.pages import Layout
from neve.metal.runtime.launch import source_text

EIGHTS = st.integers(1, 32).map(lambda n: 8 * n)
SIXTEENS = st.integers(1, 32).map(lambda n: 16 * n)
DIMS = st.tuples(EIGHTS, EIGHTS) | st.tuples(SIXTEENS, SIXTEENS)


@st.composite
def shapes(draw) -> Shape:
    page = Layout(draw(st.integers(1, 16)), draw(st.sampled_from([8, 16, 32])), *draw(DIMS))
    dtype = draw(st.sampled_from([mx.float32, mx.float16, mx.bfloat16]))
    shape = Shape(dtype, page, draw(st.integers(1, 71)), capped=False, sunk=False)
    length = draw(st.none() | st.integers(2, 16))
    shape = shape if length is None else shape.tiled(length)
    tiles = draw(st.none() | st.integers(1, 64))
    return shape if tiles is None else shape.widened(tiles)


def making_shape(turned_dims: int = 32, interleaved: bool = False, **changes: Any) -> Shape:
    """Return a shape whose heads are made on the way, 4 of 64 elements a key head."""
    making = Making(changes.pop("query_stride", 64), turned_dims, interleaved)
    page = Layout(2, 16, changes.pop("dims", 64), 64)
    shape = Shape(mx.bfloat16, page, 4, capped=False, sunk=False, making=making)
    return attrs.evolve(shape, **changes)


@given(shapes())
def test_a_plan_covers_each_head_and_element(shape: Shape) -> None:
    """PK-1: lanes hold a whole token, threadgroups all pairs of a query and a head."""
    plan: Any = template_for(shape, single=True)
    vector, lanes, pairs = plan["VEC"], plan["LPT"], plan["GT"]
    groups = shape.threadgroups // shape.page.heads

    assert shape.unsupported is None
    assert lanes * vector >= max(shape.page.dims, shape.page.v_dims)
    assert 32 % lanes == 0
    assert lanes % plan["U"] == 0
    assert pairs * vector <= 64
    assert groups * plan["HS"] * pairs >= shape.pairs


@given(shapes())
def test_threadgroups_are_no_larger_than_their_memory(shape: Shape) -> None:
    """PK-1: results of each simdgroup fit beside each other, as many pairs as fit at once."""
    plan: Any = template_for(shape, single=True)
    simdgroups, v_dims = plan["NSG"], plan["DV"]
    batch = max(1, min(STAGED // (simdgroups * v_dims), plan["GT"]))

    assert simdgroups % plan["HS"] == 0
    assert 4 <= simdgroups <= 12
    assert simdgroups * batch * v_dims <= STAGED
    assert shape.resident >= 1


def test_a_body_stages_as_much_as_is_planned() -> None:
    """PK-1: the room for results is said twice, and is the same."""
    assert f"FIT = {STAGED} / (NSG * DV);" in source_text("paged_attention.metal")


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


@pytest.mark.parametrize(
    ("shape", "width", "made"),
    [
        pytest.param(making_shape(), 768, True, id="aligned"),
        pytest.param(making_shape(), 772, False, id="rows-between-words"),
        pytest.param(making_shape(query_stride=68), 768, False, id="queries-between-words"),
        pytest.param(making_shape(query_stride=128), 1280, True, id="gates-beside"),
        pytest.param(making_shape(turned_dims=24), 768, False, id="half-a-word-turned"),
        pytest.param(making_shape(24, interleaved=True), 768, True, id="pairs-turned"),
        pytest.param(making_shape(20, interleaved=True), 768, False, id="half-a-word-of-pairs"),
        pytest.param(making_shape(turned_dims=0), 768, True, id="not-turned"),
        pytest.param(making_shape(group=32), 4352, True, id="all-queries-of-a-key"),
        pytest.param(making_shape(group=33), 4480, False, id="several-threadgroups"),
        pytest.param(making_shape(dims=60), 768, False, id="no-kernel"),
        pytest.param(making_shape(making=None), 768, False, id="heads-are-given"),
    ],
)
def test_heads_are_made_where_lanes_can_share_them(
    shape: Shape, width: int, made: bool
) -> None:
    """PK-1: of whole words, turned or not, and by the one threadgroup of their key head."""
    assert makes_heads(shape, width) == made


def test_what_no_kernel_takes_is_said() -> None:
    """PK-1: a head that lanes cannot share evenly has no kernel, and the reason is given."""
    odd = Shape(mx.float32, Layout(1, 16, 12, 8), 1, capped=False, sunk=False)
    wide = Shape(mx.float32, Layout(1, 16, 576, 512), 1, capped=False, sunk=False)
    whole = Shape(mx.int32, Layout(1, 16, 64, 64), 1, capped=False, sunk=False)

    assert "12 and 8" in str(odd.unsupported)
    assert "576 and 512" in str(wide.unsupported)
    assert "int32" in str(whole.unsupported)
