"""The parts that families build their models of."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from neve.contract.cache_spec import FullAttention, uniform_layout
from neve.contract.forward import RopeSpec, Scoring
from neve.errors import WeightError
from neve.forward.flat_context import FlatContext
from neve.forward.step_batch import RowInput, build_step_batch
from neve.layers.attention import Attention
from neve.layers.decoder import Block, DecoderModel, Trunk
from neve.layers.heads import HeadShape
from neve.layers.mlp import GatedMLP
from neve.layers.moe import Routing
from neve.layers.norms import RMSNorm
from neve.layers.sparse_mlp import SparseMLP
from neve.layers.stream import Normed, Stream
from neve.pools.flat_cache import FlatCache
from neve.testing.tiny import RandomWeights

pytestmark = pytest.mark.mlx

DIMS, HEADS, EPS, VOCAB = 32, HeadShape(4, 2, 16), 1e-5, 24
IDS = [3, 1, 4, 1, 5]


def context(num_layers: int = 1) -> Any:
    layout = uniform_layout(FullAttention(2, 16), num_layers)
    return FlatContext(layout, [FlatCache()], build_step_batch([RowInput(0, IDS)], None))


def rows() -> mx.array:
    return mx.random.normal((len(IDS), DIMS), key=mx.random.key(0))


def by_formula(layer: Attention, x: mx.array) -> mx.array:
    """Return causal grouped-query attention of one sequence from position 0."""

    def heads(name: str, norm: str) -> mx.array:
        y = layer[name](x).reshape(len(IDS), -1, 16)
        y = layer[norm](y) if norm in layer else y
        return y.swapaxes(0, 1)[None]

    q, k = heads("q_proj", "q_norm"), heads("k_proj", "k_norm")
    if layer.rope is not None:
        q, k = (
            mx.fast.rope(y, 16, traditional=False, base=1e4, scale=1.0, offset=0)
            for y in (q, k)
        )
    mask = mx.triu(mx.full((len(IDS), len(IDS)), -mx.inf), 1)
    out = mx.fast.scaled_dot_product_attention(
        q, k, heads("v_proj", ""), scale=layer.scoring.scale, mask=mask
    )
    return layer.o_proj(out[0].swapaxes(0, 1).reshape(len(IDS), -1))


@pytest.mark.parametrize("rope", [None, RopeSpec(16, 1e4)])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_attention_is_its_formula(rope: RopeSpec | None, normed: bool, joined: bool) -> None:
    """FW-2: with and without norms of heads, a rotation, and joined projections."""
    norms = {n: RMSNorm(16, eps=EPS) for n in ("q_norm", "k_norm")} if normed else {}
    layer = Attention(DIMS, HEADS, 0, rope=rope, bias=True, scoring=Scoring(0.3), **norms)
    expected = by_formula(layer, rows())
    if joined:
        layer.join()

    out = layer(Normed(rows()), context()).computed()

    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)


def test_attention_may_have_other_names() -> None:
    """FW-2: a checkpoint's names are class attributes."""

    class Renamed(Attention):
        OUTPUT, Q_NORM = "dense", "q_layernorm"

    layer = Renamed(DIMS, HEADS, 0, rope=None, q_norm=RMSNorm(16, eps=EPS))

    assert {"dense", "q_layernorm", "q_proj", "k_proj", "v_proj"} == set(layer.children())
    assert layer.scoring.scale == 16**-0.5


def test_a_block_is_two_residuals() -> None:
    """FW-2: attention and MLP, each behind its own norm."""
    mixer = Attention(DIMS, HEADS, 0, rope=None)
    block = Block(mixer, GatedMLP(DIMS, 48), lambda: RMSNorm(DIMS, eps=EPS))
    block.input_layernorm.weight = mx.random.normal((DIMS,), key=mx.random.key(5))
    x = rows()
    attended = x + by_formula(mixer, block.input_layernorm(x))
    expected = attended + block.mlp(block.post_attention_layernorm(attended))

    out = block(Stream(x), context()).computed()

    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_experts_are_weighed_by_their_router(bias: bool) -> None:
    """FW-2: two of four experts, by hand."""
    layer = SparseMLP(DIMS, 40, 4, Routing(2, scores="sigmoid"), bias=bias)
    if bias:
        layer.expert_bias = mx.array([0.0, 9.0, 0.0, 9.0])
    x = rows()
    scores = mx.sigmoid(layer.gate(x))
    order = mx.argsort(-(scores + layer.get("expert_bias", mx.zeros(4))), axis=-1)[:, :2]
    chosen = mx.take_along_axis(scores, order, axis=-1)
    expected = layer.experts(x, order, chosen / chosen.sum(axis=-1, keepdims=True))

    np.testing.assert_allclose(layer.delta(Normed(x)), expected, rtol=1e-4, atol=1e-5)
    assert not bias or mx.all((order == 1) | (order == 3))


def model(*, tied: bool, text_tower: bool = False) -> DecoderModel:
    layers = [
        Block(
            Attention(DIMS, HEADS, i, rope=None),
            GatedMLP(DIMS, 48),
            lambda: RMSNorm(DIMS, eps=EPS),
        )
        for i in range(2)
    ]
    trunk = Trunk(VOCAB, DIMS, layers, RMSNorm(DIMS, eps=EPS))
    return DecoderModel(trunk, tied=tied, text_tower=text_tower)


class Given(RandomWeights):
    """Random weights, and a copy of the head that a tied checkpoint carries."""

    def renamed(self, fn: Any) -> Any:
        self.tensors["asked"] = mx.array([fn("lm_head.weight") is None, fn("a.b") is None])
        return self


@pytest.mark.parametrize("tied", [False, True])
def test_a_copy_of_a_tied_head_is_left_out(tied: bool) -> None:
    """FW-2: and the layers of one input are one afterwards."""
    weights = Given(0.1)
    made = model(tied=tied).with_weights(weights)

    assert ("asked" in weights.tensors) == tied
    assert not tied or weights.tensors["asked"].tolist() == [True, False]
    assert "joined" in made.trunk.layers[0].self_attn


@pytest.mark.parametrize(
    ("text_tower", "name"),
    [(False, "model.norm.weight"), (True, "model.language_model.norm.weight")],
)
def test_parameters_have_a_checkpoints_names(text_tower: bool, name: str) -> None:
    """FW-2: beside other towers the trunk lies deeper."""
    weights = RandomWeights(0.1)
    model(tied=True, text_tower=text_tower).with_weights(weights)

    assert name in weights.tensors
    assert not any(key.startswith("lm_head") for key in weights.tensors)


@pytest.mark.parametrize("use", [lambda w: w["a"], lambda w: w.shape("a")])
def test_random_weights_have_no_tensors_of_their_own(use: Any) -> None:
    """FW-6: a family that reads tensors before it loads them is told so."""
    with pytest.raises(WeightError, match="random weights have no a"):
        use(RandomWeights(0.1))
