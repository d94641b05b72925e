"""How weights lie in memory, and what multiplies by them."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten

from neve.metal.elementwise.norms import ProbeNorm
from neve.metal.linear.layout import (
    FewRowsEmbedding,
    FewRowsLinear,
    InputMajorLinear,
    added_projection,
    gated_projection,
    normed_projection,
    prefer_layout,
)
from neve.metal.runtime import dispatch, launch
from neve.testing.kernels import emulator

pytestmark = pytest.mark.mlx

WITHOUT_WEIGHT = ProbeNorm(None, 1e-5, zero_centred=False)

needs_compiler = pytest.mark.skipif(
    emulator.compiler() is None, reason="no C++ compiler to build kernels for the host"
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 8)
        self.blocks = [nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 8, bias=False))]
        self.narrow = nn.QuantizedLinear(64, 8)
        self.head = nn.Linear(8, 12)

    def __call__(self, x: mx.array) -> mx.array:
        return self.head(self.embedding.as_linear(self.blocks[0](x)) @ mx.ones((4, 8)))


def parameters(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def assert_same(model: Model, x: mx.array, expected: mx.array) -> None:
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)


def kernels() -> int:
    return sum(n for name, n in dispatch.counts().items() if name.endswith(":host"))


def test_parameters_and_products_stay() -> None:
    """FW-2: names, shapes and values are those of the checkpoint, whatever lies in memory."""
    model, x = Model(), mx.random.normal((3, 8))
    before, expected = parameters(model), model(x)
    mx.eval(before, expected)
    prefer_layout(model)
    after = parameters(model)

    assert_same(model, x, expected)
    assert isinstance(model.blocks[0].layers[1], InputMajorLinear)
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]) for name in before)


@needs_compiler
def test_layers_for_few_rows() -> None:
    """PK-1: where kernels run, layers have one for few rows, and the same parameters."""
    model, x = Model(), mx.random.normal((3, 8))
    before, expected = parameters(model), model(x)
    mx.eval(before, expected)
    with launch.using(emulator.HostBackend()):
        prefer_layout(model)
        after, run = parameters(model), kernels()

        assert_same(model, x, expected)
    # a layer of 6 inputs has no kernel
    assert kernels() == run + 3
    assert isinstance(model.embedding, FewRowsEmbedding)
    assert type(model.narrow) is nn.QuantizedLinear
    assert before.keys() == after.keys()
    assert all(mx.array_equal(before[name], after[name]) for name in before)


@needs_compiler
@pytest.mark.parametrize("shape", [(8,), (2, 3, 8), (9, 8), (3, 3, 8), (0, 8)])
def test_rows_of_any_shape(shape: tuple[int, ...]) -> None:
    """PK-1: leading dimensions stay, and one row, many or none go to MLX."""
    layer, x = nn.Linear(8, 5), mx.random.normal(shape)
    expected, run = layer(x), kernels()
    with launch.using(emulator.HostBackend()):
        got = FewRowsLinear.of(layer)(x)

    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert kernels() == run + (1 < x.size // 8 <= 8)


@needs_compiler
def test_gated_projection() -> None:
    """PK-1: a joined gate and up take one launch, for few rows of a layer that has a kernel."""
    plain, x = nn.Linear(8, 10), mx.random.normal((2, 8))
    gate, up = mx.split(plain(x), 2, axis=-1)
    with launch.using(emulator.HostBackend()):
        layer = FewRowsLinear.of(plain)
        got = gated_projection(layer, x)

        assert got is not None
        np.testing.assert_allclose(got, nn.silu(gate) * up, atol=1e-5)
        assert gated_projection(layer, mx.zeros((9, 8))) is None
        assert gated_projection(layer, x, norm=WITHOUT_WEIGHT) is None
        assert gated_projection(plain, x) is None


@needs_compiler
@pytest.mark.parametrize("num_rows", [1, 8])
def test_norms_and_residuals(num_rows: int) -> None:
    """PK-1: a norm before a product, or a sum after it, takes no launch of its own."""
    plain, x = nn.Linear(8, 5), mx.random.normal((num_rows, 8))
    norm = ProbeNorm(mx.random.normal((8,)), 1e-5, zero_centred=True)
    residual, run = mx.random.normal((num_rows, 5)), kernels()
    with launch.using(emulator.HostBackend()):
        layer = FewRowsLinear.of(plain)
        normed = normed_projection(layer, x, norm)
        added = added_projection(layer, x, residual)

    assert kernels() == run + 2
    assert normed is not None
    assert added is not None
    np.testing.assert_allclose(normed, plain(norm(x)), atol=1e-5)
    np.testing.assert_allclose(added, residual + plain(x), atol=1e-5)


@needs_compiler
def test_what_has_no_kernel_is_left_alone() -> None:
    """PK-1: many rows, other layers and norms without a weight are the caller's to compute."""
    norm = ProbeNorm(mx.ones((8,)), 1e-5, zero_centred=False)
    with launch.using(emulator.HostBackend()):
        plain, few, many = nn.Linear(8, 5), mx.zeros((2, 8)), mx.zeros((9, 8))
        layer = FewRowsLinear.of(plain)

        assert normed_projection(plain, few, norm) is None
        assert normed_projection(layer, many, norm) is None
        assert normed_projection(layer, few, WITHOUT_WEIGHT) is None
        assert added_projection(plain, few, mx.zeros((2, 5))) is None
        assert added_projection(layer, many, mx.zeros((9, 5))) is None


def test_views_are_stored() -> None:
    """PK-1: a weight that is a view is stored once, not copied by each launch."""
    layer = nn.Linear(8, 5, bias=False)
    layer.weight = mx.arange(40.0).reshape(8, 5).T
    strides = np.array(FewRowsLinear.of(layer).weight, copy=False).strides

    assert strides == (32, 4)
