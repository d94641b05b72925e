"""What figures call a group."""

from __future__ import annotations

import pytest

from neve.contract.cache_spec import (
    FullAttention,
    Recurrent,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    layer_routes,
)
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.flat_coordinator import FlatCoordinator
from neve.kvcache.stats import group_kind

FULL = FullAttention(1, 8)
WINDOW = SlidingWindow(64, 1, 8)
STATE = RecurrentState([StateTensor("conv", (2,))])


@pytest.mark.parametrize(
    ("spec", "kind"), [(FULL, "full"), (WINDOW, "window 64"), (None, "no keys")]
)
def test_kind(spec, kind):
    """GR-3: a group is called after what its layers keep."""
    assert group_kind(spec) == kind


@pytest.mark.parametrize(
    ("specs", "kinds"),
    [([WINDOW, FULL, WINDOW], ["window 64", "full"]), ([STATE], ["no keys"])],
)
def test_stats_have_the_kind(specs, kinds):
    """GR-1: the figures of every group say which one it is, in the order of the layout."""
    layout = layer_routes(specs)
    allocators = [BlockAllocator(8, 16) for _ in layout.groups or [None]]
    found = Coordinator(layout, allocators).stats().groups

    assert [group.kind for group in found] == kinds
    assert any(isinstance(route, Recurrent) for route in layout.routes) == (specs == [STATE])


@pytest.mark.parametrize(
    ("sizes", "grow", "width"),
    [([8, 4], None, 3), ([3, 8], None, 2), ([2, 9], lambda *_: None, 5)],
)
def test_width(sizes, grow, width):
    """GR-4: every sequence needs one block in each group; what can grow counts."""
    layout = layer_routes([WINDOW, FULL])
    allocators = [BlockAllocator(n, 16, n if grow is None else max(n, 6)) for n in sizes]

    assert Coordinator(layout, allocators, grow).max_concurrent_sequences == width


def test_width_of_the_flat_path():
    """GR-4: on the flat path every sequence needs a block's worth of its budget."""
    assert FlatCoordinator(5, 16).max_concurrent_sequences == 5
