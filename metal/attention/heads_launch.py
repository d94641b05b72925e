"""The launch that norms and rotates heads and writes keys and values to their pages."""

from __future__ import annotations

import functools
import math
from typing import TypeAlias

import attrs
import mlx.core as mx

from ..runtime.launch import Kernel, Launch, Template, floats, ints
from .head_shape import HeadShape, Making, Norms, Slots, Turns, epsilons_of, weights_of
from .pages import Pages

_KERNEL = Kernel(
    "prepare_heads",
    (
        "projected",
        "keys",
        "values",
        "prev",
        "tables",
        "rows",
        "positions",
        "turns",
        "q_weight",
        "k_weight",
        "v_weight",
        "fp",
    ),
    ("q", "token"),
)
_SIMDGROUPS = 4
_MIN_ELEMENTS = 8  # MLX passes smaller arrays in the constant address space
_PLACES = ("keys", "values", "tables", "rows", "positions")

Kind: TypeAlias = tuple[HeadShape, int, mx.Dtype | None, int, Making]
"""Arguments of `_plan` without the number of tokens."""


@attrs.frozen
class Plan:
    """Everything about a launch that depends on shapes and dtypes, not on values.

    Attributes:
        unsupported: Why the kernel cannot take the arguments, None if it can.
        variant: Key of the compiled kernel.
        kernel: The kernel with the inputs that it reads.
        launch: Grid, threadgroup, template and outputs.
    """

    unsupported: str | None
    variant: Kind
    kernel: Kernel
    launch: Launch


def plan_of(
    projected: mx.array,
    pages: Pages | None,
    turns: Turns | None,
    shape: HeadShape,
    norms: Norms,
) -> Plan:
    """Return the plan for the arguments of `prepare_heads`; equal kinds share one plan."""
    dtypes = {projected.dtype, *(weight.dtype for weight in weights_of(norms))}
    page_size = 0
    if pages is not None:
        page_size = pages.keys.shape[2]
        dtypes |= {pages.keys.dtype, pages.values.dtype}
    dtype = projected.dtype if len(dtypes) == 1 else None
    making = Making.of(shape, turns, norms)
    num_tokens, width = projected.shape
    return _plan(num_tokens, shape, width, dtype, page_size, making)


def launched(
    plan: Plan,
    projected: mx.array,
    pages: Pages | None,
    slots: Slots | None,
    turns: Turns | None,
    norms: Norms,
) -> tuple[mx.array, mx.array | None]:
    """Put the launch into the graph, and return what `prepare_heads` returns."""
    places, num_pages = [ints(0)], 0
    if pages is not None and slots is not None:
        places = [pages.keys, pages.values, pages.fence]
        places += [slots.tables, slots.rows, slots.positions]
        num_pages = slots.tables.shape[-1]
    if turns is not None:
        places.append(turns.factors)
    numbers = floats(*epsilons_of(norms), *projected.shape, num_pages)
    inputs = (projected, *places, *weights_of(norms), numbers)
    q, fence = plan.kernel(*inputs, launch=plan.launch)
    return q, None if pages is None else fence


def _unsupported(
    shape: HeadShape, dtype: mx.Dtype | None, making: Making, word: int
) -> str | None:
    """Return why the kernel cannot take such arguments, None if it can."""
    if dtype is None:
        return "projections, norms and pages have several dtypes"
    if min(shape.head_dim, shape.value_dim) < _MIN_ELEMENTS or shape.head_dim % 2:
        return f"heads of {shape.head_dim} and {shape.value_dim} elements"
    if 0 < making.turned_dims < 2 * _MIN_ELEMENTS:
        return f"a rotation of {making.turned_dims} elements"
    if making.interleaved and word == 1:
        return f"interleaved pairs with an odd size in {shape}"
    return None


def _word(shape: HeadShape, width: int, making: Making) -> int:
    """Return the elements that a lane reads at once, so few that no lane is idle."""
    half = making.turned_dims if making.interleaved else making.turned_dims // 2
    widest = max(shape.head_dim, shape.value_dim)
    most = 8 if widest > 128 else 4 if widest > 64 else 2
    return math.gcd(width, shape.head_dim, shape.value_dim, shape.query_stride, half, most)


@functools.lru_cache(maxsize=1024)
def _plan(
    num_tokens: int,
    shape: HeadShape,
    width: int,
    dtype: mx.Dtype | None,
    page_size: int,
    making: Making,
) -> Plan:
    word = _word(shape, width, making)
    template: Template = {
        "T": dtype or mx.float32,
        "HQ": shape.num_heads,
        "HK": shape.kv_heads,
        "D": shape.head_dim,
        "DV": shape.value_dim,
        "QS": shape.query_stride,
        "S": max(1, page_size),
        "ROT": making.turned_dims,
        "INTER": making.interleaved,
        "QN": making.norms[0],
        "KN": making.norms[1],
        "VN": making.norms[2],
        "V": word,
        "C": -(-max(shape.head_dim, shape.value_dim) // (32 * word)),
    }
    simdgroups = num_tokens * (shape.num_heads + 2 * shape.kv_heads)
    queries = (num_tokens, shape.num_heads, shape.head_dim)
    launch = Launch(
        template=template,
        grid=(-(-simdgroups // _SIMDGROUPS) * _SIMDGROUPS * 32, 1, 1),
        threadgroup=(_SIMDGROUPS * 32, 1, 1),
        outputs=[(queries, dtype or mx.float32), ((1,), mx.int32)],
    )
    absent = [] if page_size else [*_PLACES]
    absent += [] if making.turned_dims else ["turns"]
    return Plan(
        _unsupported(shape, dtype, making, word),
        (shape, width, dtype, page_size, making),
        _KERNEL.without(*absent, *making.unweighted),
        launch,
    )
