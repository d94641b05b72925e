from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from neve.layers.mlp import GatedMLP, geglu
from neve.layers.norms import RMSNorm
from neve.layers.stream import Normed
from neve.metal.elementwise.activations import Activation, swiglu

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


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_joined_layers_give_the_same(activation: Activation, joined: bool) -> None:
    """FW-2: the activation of a joined projection is that of its halves, to the bit."""
    mlp = GatedMLP(6, 10, activation=activation)
    if joined:
        mlp.join()
    x = mx.random.normal((5, 6), key=mx.random.key(1))
    gated = swiglu if activation == "silu" else geglu

    assert mx.array_equal(mlp(x), mlp.down_proj(gated(*mlp.project(x))))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(mx.float32, 1e-6), (mx.bfloat16, 2**-6)], ids=["f32", "bf16"]
)
def test_geglu_is_the_tanh_form(dtype: mx.Dtype, tolerance: float) -> None:
    """FW-2: the gate's activation is MLX's `gelu_approx`."""
    gate = mx.linspace(-8, 8, 1001)
    want = nn.gelu_approx(gate.astype(dtype).astype(mx.float32))
    got = geglu(gate.astype(dtype), mx.ones((1001,), dtype)).astype(mx.float32)

    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_what_is_not_normed_yet() -> None:
    """FW-2: the block norms what is handed to it with its norm."""
    mlp, norm = GatedMLP(6, 10), RMSNorm(6, eps=1e-5)
    x = mx.random.normal((5, 6), key=mx.random.key(2))

    assert mx.array_equal(mlp(Normed(x, norm)), mlp(norm(x)))
