"""Layers of one input, joined or apart."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from neve.layers.joint import JointModule, join_layers

pytestmark = pytest.mark.mlx

WIDTHS = {"first": 64, "second": 32, "third": 8}


class Trio(JointModule):
    JOINT = tuple(WIDTHS)

    def __init__(self, *, bias: bool = False) -> None:
        super().__init__()
        for i, (name, width) in enumerate(WIDTHS.items()):
            self[name] = nn.Linear(64, width, bias=bias)
            self[name].weight = mx.random.normal((width, 64), key=mx.random.key(i))


def names(module: nn.Module) -> set[str]:
    flat: Any = tree_flatten(module.parameters())
    return {name for name, _ in flat}


def num_bytes(module: nn.Module) -> int:
    flat: Any = tree_flatten(module.parameters())
    return sum(array.nbytes for _, array in flat)


def inputs() -> mx.array:
    return mx.random.normal((5, 64), key=mx.random.key(9))


def assert_same(module: JointModule, before: Any) -> None:
    for actual, expected in zip(module.project(inputs()), before, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_a_joint_product_is_each_layers(bias: bool) -> None:
    """FW-2: what the layers compute does not depend on whether they are joined."""
    module = Trio(bias=bias)
    before, size = module.project(inputs()), num_bytes(module)
    join_layers(module)

    assert_same(module, before)
    assert names(module) == {"joined.weight"} | ({"joined.bias"} if bias else set())
    assert num_bytes(module) == size


@pytest.mark.parametrize(
    ("mode", "group_size", "bits"), [("affine", 32, 4), ("affine", 64, 8), ("mxfp4", 32, 4)]
)
def test_layers_that_are_quantised_alike_are_joined(
    mode: str, group_size: int, bits: int
) -> None:
    """FW-2: packed weights and scales are joined as they are; nothing is rounded again."""
    module = Trio()
    nn.quantize(module, group_size, bits, mode=mode)
    before = module.project(inputs())
    join_layers(module)

    assert_same(module, before)
    assert "joined.scales" in names(module)


def test_layers_that_are_quantised_differently_stay_apart() -> None:
    """FW-2: some checkpoints give single projections more bits."""
    module = Trio()
    module["third"] = module["third"].to_quantized(group_size=32, bits=8)
    before, kept = module.project(inputs()), names(module)
    join_layers(module)

    assert_same(module, before)
    assert names(module) == kept


def test_modules_inside_others_are_joined() -> None:
    """FW-2: a model is a tree, with lists of blocks."""
    model = nn.Module()
    model.blocks = [Trio(), Trio()]
    join_layers(model)

    assert names(model) == {"blocks.0.joined.weight", "blocks.1.joined.weight"}


def test_parts_are_uncut() -> None:
    """FW-2: whoever takes them all gets one array of joined layers, and one each before."""
    module = Trio()
    apart, row = module.project_parts(inputs()), module.project_joined(inputs())
    join_layers(module)
    (joined,) = module.project_parts(inputs())

    assert [part.shape for part in apart] == [(5, width) for width in WIDTHS.values()]
    assert mx.array_equal(row, mx.concatenate([*apart], axis=-1))
    np.testing.assert_allclose(joined, row, atol=1e-5)
    assert mx.array_equal(module.project_joined(inputs()), joined)
