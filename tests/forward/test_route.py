"""Calls of layers that do not fit the layout: each names the layer and what was declared."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from neve.contract.cache_spec import (
    Alias,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    layer_routes,
)
from neve.contract.heads import HeadShape, Projected
from neve.errors import CacheMisuseError
from neve.forward.route import HeadsGiven, StepRoutes

pytestmark = pytest.mark.mlx

STATE = RecurrentState([StateTensor("conv", (2, 4))])
LAYOUT = layer_routes([FullAttention(2, 8, 4), STATE, Alias(0), None, SlidingWindow(5, 1, 6)])
FULL, QUERIES, WINDOWED = (
    HeadsGiven(4, 8, (2, 8), (2, 4)),
    HeadsGiven(4, 8, None, None),
    HeadsGiven(3, 6, (1, 6), (1, 6)),
)


@pytest.fixture
def routes() -> StepRoutes:
    """The routes of a step in which no layer was called yet."""
    return StepRoutes(LAYOUT)


def test_calls_in_layer_order_fit(routes: StepRoutes) -> None:
    """GR-1: each layer once, those that keep nothing left out."""
    assert routes.attend(0, FULL) is LAYOUT.routes[0]
    assert routes.scan(1) is STATE
    assert routes.attend(2, QUERIES) is LAYOUT.routes[0]
    assert routes.attend(4, WINDOWED) is LAYOUT.routes[4]


def test_attending_as_one_layer_all_along_is_refused(routes: StepRoutes) -> None:
    """GR-1: every layer's keys in one place would answer without notice, and wrongly."""
    routes.attend(0, FULL)

    with pytest.raises(CacheMisuseError, match="attend in layer 0: layer 0 was called before"):
        routes.attend(0, FULL)


def test_a_layer_out_of_order_is_refused(routes: StepRoutes) -> None:
    """GR-1: a layer that is called late was mistaken for another."""
    routes.attend(4, WINDOWED)

    with pytest.raises(CacheMisuseError, match="scan layer 1: layer 4 was called before"):
        routes.scan(1)


@pytest.mark.parametrize("layer", [5, 6, -1])
def test_a_layer_that_is_not_there_is_refused(layer: int, routes: StepRoutes) -> None:
    """GR-1: a layout one route short, or a model one layer off, is named as that."""
    sentence = f"layer {layer}: the layout declares 5 layers, 0 to 4"

    with pytest.raises(CacheMisuseError, match=f"attend in {sentence}"):
        routes.attend(layer, FULL)
    with pytest.raises(CacheMisuseError, match=f"scan {sentence}"):
        routes.scan(layer)


@pytest.mark.parametrize(
    ("layer", "given"),
    [
        (0, HeadsGiven(4, 16, (2, 16), (2, 4))),
        (0, HeadsGiven(4, 16, (2, 8), (2, 4))),
        (0, HeadsGiven(4, 8, (4, 8), (2, 4))),
        (0, HeadsGiven(4, 8, (2, 8), (2, 8))),
        (0, HeadsGiven(3, 8, (2, 8), (2, 4))),
        (2, HeadsGiven(4, 4, None, None)),
        (4, HeadsGiven(3, 8, (1, 8), (1, 8))),
    ],
)
def test_heads_of_another_shape_are_refused(
    layer: int, given: HeadsGiven, routes: StepRoutes
) -> None:
    """GR-1: the error names the layer, what is declared and what was given."""
    with pytest.raises(CacheMisuseError) as caught:
        routes.attend(layer, given)

    spec = LAYOUT.groups[LAYOUT.owner(layer).group]
    sentence = str(caught.value)
    assert f"layer {layer}: the layout declares" in sentence
    assert f"keys [T, {spec.kv_heads}, {spec.head_dim}]" in sentence
    assert f"values [T, {spec.kv_heads}, {spec.value_dim}]" in sentence
    assert sentence.endswith(f"given are {given}")


def test_a_refused_call_counts_for_nothing(routes: StepRoutes) -> None:
    """GR-1: the layer may be called again, rightly."""
    with pytest.raises(CacheMisuseError):
        routes.attend(0, QUERIES)

    assert routes.attend(0, FULL) is LAYOUT.routes[0]


@pytest.mark.parametrize("kv_heads", [0, 2])
def test_projections_and_heads_are_described_alike(kv_heads: int) -> None:
    """GR-1: both ways into the cache are held to one rule."""
    shape = HeadShape(4, kv_heads, 8, value_dim=6)
    q, k, v = (mx.zeros((3, heads, dim)) for heads, dim in ((4, 8), (2, 8), (2, 6)))
    brought: Any = (q, k, v) if kv_heads else (q, None, None)

    projected = HeadsGiven.projected(Projected((mx.zeros((3, 64)),), shape))

    assert projected == HeadsGiven.of(*brought)
