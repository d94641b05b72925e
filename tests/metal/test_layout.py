"""How weights lie in memory."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from neve.metal.layout import prefer_input_major

pytestmark = pytest.mark.mlx


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.blocks = [nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8, bias=False))]

    def __call__(self, x: mx.array) -> mx.array:
        return self.blocks[0](x)


def test_parameters_and_products_stay() -> None:
    """FW-2: names, shapes and values are those of the checkpoint, whatever lies in memory."""
    model, x = Model(), mx.random.normal((3, 8))
    before, expected = dict(tree_flatten(model.parameters())), model(x)
    mx.eval(before, expected)
    prefer_input_major(model)
    after = dict(tree_flatten(model.parameters()))

    np.testing.assert_allclose(model(x), expected, atol=1e-6)
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]) for name in before)
