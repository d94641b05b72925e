from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from neve.layers.mlp import GatedMLP

pytestmark = pytest.mark.mlx


def test_the_block_is_its_formula() -> None:
    """FW-2: `down(silu(gate(x)) * up(x))`, in float64."""
    mlp = GatedMLP(6, 10)
    x = np.random.default_rng(0).normal(size=(5, 6))
    gate, up, down = (
        np.array(layer.weight, np.float64)
        for layer in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    )
    gated = x @ gate.T
    expected = (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T

    np.testing.assert_allclose(mlp(mx.array(x, mx.float32)), expected, atol=1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_parameters_are_named_as_in_checkpoints(bias: bool) -> None:
    """FW-2: weights are taken by name, so the names are a promise."""
    names = {name for name, _ in tree_flatten(GatedMLP(6, 10, bias=bias).parameters())}

    kinds = ("weight", "bias") if bias else ("weight",)
    assert names == {f"{p}_proj.{k}" for p in ("gate", "up", "down") for k in kinds}
