"""Mixtures of experts, against loops over tokens in float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from neve.checkpoint.quantization import Mode
from neve.layers import moe
from neve.layers.moe import Arrangement, Experts, Routing

pytestmark = pytest.mark.mlx

DIMS, HIDDEN = 64, 96
MODES: list[tuple[Mode, int, int]] = [("affine", 32, 4), ("affine", 32, 8), ("mxfp4", 32, 4)]


def logits_of(num_tokens: int, num_experts: int) -> np.ndarray:
    return np.random.default_rng(num_tokens).normal(size=(num_tokens, num_experts)) * 3


def float64(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32), np.float64)


def by_expert(chosen: mx.array, weights: mx.array) -> dict[int, float]:
    return {int(e): float(w) for e, w in zip(np.array(chosen), np.array(weights), strict=True)}


# -- routing -------------------------------------------------------------------------------


def in_groups(routing: Routing, scores: np.ndarray) -> np.ndarray:
    """Return scores with zeros outside the groups whose two best experts sum to most."""
    size = len(scores) // routing.num_groups
    groups = [scores[i : i + size] for i in range(0, len(scores), size)]
    if routing.num_groups == 1:
        return scores
    sums = [np.sort(group)[-2:].sum() for group in groups]
    kept = np.argsort(sums)[-routing.num_chosen_groups :]
    return np.concatenate([g if i in kept else 0 * g for i, g in enumerate(groups)])


def naive_routing(routing: Routing, logits: np.ndarray, bias: np.ndarray) -> list[dict]:
    """Return expert -> weight for each token."""
    result = []
    for row in logits:
        if routing.scores == "softmax":
            scores = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        else:
            scores = 1 / (1 + np.exp(-row))
        ranked = in_groups(routing, scores + bias)
        chosen = np.argsort(-ranked)[: routing.num_chosen]
        total = scores[chosen].sum() + routing.epsilon if routing.renormalise else 1.0
        result.append({int(e): scores[e] / total * routing.scale for e in chosen})
    return result


@pytest.mark.parametrize(
    "routing",
    [
        Routing(2),
        Routing(3, renormalise=False),
        Routing(4, scores="sigmoid", epsilon=1e-6),
        Routing(1, scores="sigmoid", renormalise=False, scale=2.5),
        Routing(8, scores="sigmoid", scale=0.5),
        Routing(2, scores="sigmoid", num_groups=4, num_chosen_groups=1),
        Routing(3, scores="sigmoid", num_groups=4, num_chosen_groups=2, scale=2.5),
        Routing(4, num_groups=2, num_chosen_groups=2),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_routing_is_its_formula(routing: Routing, biased: bool):
    """FA-6: scores over all experts, a choice that a bias may sway, and unbiased weights."""
    logits = logits_of(50, 8)
    bias = np.linspace(-0.5, 0.5, 8) if biased else np.zeros(8)
    given = mx.array(bias, mx.float32) if biased else None
    chosen, weights = routing(mx.array(logits, mx.float32), given)

    assert chosen.shape == weights.shape == (50, routing.num_chosen)
    for row, expected in enumerate(naive_routing(routing, logits, bias)):
        actual = by_expert(chosen[row], weights[row])
        assert actual.keys() == expected.keys()
        assert all(abs(actual[e] - expected[e]) < 1e-6 for e in expected)


def test_the_bias_only_chooses():
    """FA-6: an expert that its bias lets in has the weight of its own small score."""
    logits, bias = mx.array([[2.0, 1.0, -3.0]]), mx.array([0.0, 0.0, 9.0])
    routing = Routing(2, scores="sigmoid", renormalise=False)
    chosen, weights = routing(logits, bias)

    assert by_expert(chosen[0], weights[0]) == pytest.approx(
        {0: 1 / (1 + np.exp(-2)), 2: 1 / (1 + np.exp(3))}
    )


def test_groups_keep_out_the_best_expert_of_all():
    """FA-7: the best expert of a weak group is not chosen, nor is a group by that one alone."""
    logits = mx.array([[5.0, -9.0, 2.0, 2.0, 1.0, 1.5]])
    routing = Routing(2, scores="sigmoid", num_groups=3, num_chosen_groups=1)
    chosen, _ = routing(logits)

    assert {*np.array(chosen[0]).tolist()} == {2, 3}
    assert 0 in np.array(Routing(2, scores="sigmoid")(logits)[0])


def test_experts_left_out_score_zero():
    """FA-7: as with the makers, one of them comes before a biased score below zero."""
    logits, bias = mx.array([[3.0, -3.0, 1.0, 1.0]]), mx.array([0.0, -2.0, -0.9, -0.9])
    routing = Routing(2, scores="sigmoid", num_groups=2, num_chosen_groups=1)
    chosen, _ = routing(logits, bias)

    # the first group sums to -1.0 and the second to -0.3, which is chosen; both of its own lie
    # below zero, so experts of the first, at zero, come first
    assert {*np.array(chosen[0]).tolist()} == {0, 1}


def test_routing_computes_in_float32():
    """FA: rounded logits are widened before they become scores."""
    logits = mx.array(logits_of(20, 8)).astype(mx.bfloat16)
    chosen, weights = Routing(2)(logits)
    exact, expected = Routing(2)(logits.astype(mx.float32))

    assert weights.dtype == mx.float32
    assert mx.array_equal(chosen, exact)
    assert mx.array_equal(weights, expected)


# -- arrangements --------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    num_tokens=st.integers(1, 70),
    num_experts=st.integers(1, 12),
    num_chosen=st.integers(1, 4),
    concentration=st.sampled_from([0.0, 0.3, 5.0]),
    seed=st.integers(0, 2**16),
)
def test_every_row_lies_with_its_expert(
    num_tokens: int,
    num_experts: int,
    num_chosen: int,
    concentration: float,
    seed: int,
):
    """FA: whatever the order, each row is in a group of its expert and comes back."""
    num_chosen = min(num_chosen, num_experts)
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(num_tokens, num_experts)) + concentration * np.arange(num_experts)
    chosen = mx.array(np.argsort(-scores)[:, :num_chosen].astype(np.uint32))
    x = mx.arange(num_tokens)[:, None]
    for arrangement in (
        moe._as_they_are(chosen),
        moe._sorted(chosen),
        moe._in_blocks(chosen, num_experts),
    ):
        experts: Any = arrangement.experts.tolist()
        width = arrangement.tokens.shape[1]
        of_rows = mx.repeat(arrangement.experts, width).reshape(-1, width, 1)

        assert arrangement.experts.shape == arrangement.tokens.shape[:1]
        assert experts == sorted(experts) or not arrangement.is_sorted
        assert max(experts) < num_experts
        rows = arrangement.collect(arrangement.spread(x), chosen.shape)
        assert mx.array_equal(rows, mx.broadcast_to(x[:, None], rows.shape))
        assert mx.array_equal(arrangement.collect(of_rows, chosen.shape)[..., 0], chosen)


# -- experts -------------------------------------------------------------------------------


def layers_of(experts: Experts) -> dict[str, Any]:
    return dict(experts.leaf_modules())


def experts_of(num_experts: int, **options) -> Experts:
    experts = Experts(num_experts, DIMS, HIDDEN, **options)
    mx.random.seed(num_experts)
    for layer in layers_of(experts).values():
        layer.weight = mx.random.normal(layer.weight.shape) * 0.2
    mx.eval(experts.parameters())
    return experts


def relu2(x: mx.array) -> mx.array:
    return mx.square(mx.maximum(x, 0))


def inputs(num_tokens: int, num_experts: int, num_chosen: int = 2):
    x = np.random.default_rng(num_tokens).normal(size=(num_tokens, DIMS))
    chosen, weights = Routing(num_chosen)(mx.array(logits_of(num_tokens, num_experts)))
    return mx.array(x, mx.float32), chosen, weights


def naive_experts(experts: Experts, x, chosen, weights, activation) -> np.ndarray:
    layers = {name: float64(layer.weight) for name, layer in layers_of(experts).items()}
    x, out = float64(x), np.zeros(x.shape)
    for token, (row, row_weights) in enumerate(
        zip(np.array(chosen), np.array(weights), strict=True)
    ):
        for e, weight in zip(row, row_weights, strict=True):
            hidden = layers["up_proj"][e] @ x[token]
            if "gate_proj" in layers:
                hidden = activation(layers["gate_proj"][e] @ x[token]) * hidden
            else:
                hidden = activation(hidden)
            out[token] += weight * (layers["down_proj"][e] @ hidden)
    return out


def silu64(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("num_tokens", [1, 2, 8, 31, 33, 200])
@pytest.mark.parametrize("num_experts", [4, 24])
def test_experts_are_their_formula(num_tokens: int, num_experts: int):
    """FA-6: the weighted sum of gated MLPs, in whichever way the rows are ordered."""
    experts, given = experts_of(num_experts), inputs(num_tokens, num_experts)
    expected = naive_experts(experts, *given, silu64)

    np.testing.assert_allclose(experts(*given), expected, atol=2e-5)


def test_experts_without_a_gate():
    """FA-7: another activation, and no gate."""
    experts = experts_of(6, gated=False, activation=relu2)
    given = inputs(40, 6)
    expected = naive_experts(experts, *given, lambda x: np.maximum(x, 0) ** 2)
    names = {name for name, _ in tree_flatten(experts.parameters())}

    assert names == {"up_proj.weight", "down_proj.weight"}
    np.testing.assert_allclose(experts(*given), expected, atol=1e-4)


@pytest.mark.parametrize("num_tokens", [8, 200])
def test_a_token_does_not_depend_on_its_company(num_tokens: int):
    """TG-3: a batched token is up to rounding what it is alone."""
    experts, (x, chosen, weights) = experts_of(4), inputs(num_tokens, 4)
    together = experts(x, chosen, weights)
    rows = [slice(i, i + 1) for i in range(num_tokens)]
    alone = mx.concatenate([experts(x[r], chosen[r], weights[r]) for r in rows])

    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_an_expert_that_nobody_chose_is_not_seen():
    """FA: padding of blocks is computed and thrown away, whatever comes of it."""
    experts, (x, _, weights) = experts_of(4), inputs(100, 4)
    chosen = mx.broadcast_to(mx.array([0, 2], mx.uint32), (100, 2))
    expected = naive_experts(experts, x, chosen, weights, silu64)
    for layer in layers_of(experts).values():
        layer.weight[1] = mx.nan
        layer.weight[3] = mx.nan

    np.testing.assert_allclose(experts(x, chosen, weights), expected, atol=2e-5)


@pytest.mark.parametrize("num_tokens", [3, 150])
def test_dtype(num_tokens: int):
    """FA: weights in float32 do not widen the residual stream."""
    experts, (x, chosen, weights) = experts_of(4), inputs(num_tokens, 4)
    experts.set_dtype(mx.bfloat16)
    x = x.astype(mx.bfloat16)
    out = experts(x, chosen, weights)
    expected = naive_experts(experts, x, chosen, weights, silu64)

    assert out.dtype == mx.bfloat16
    assert np.abs(float64(out) - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(("mode", "group_size", "bits"), MODES)
@pytest.mark.parametrize("num_tokens", [1, 12, 100])
def test_quantised(mode: Mode, group_size: int, bits: int, num_tokens: int):
    """FA: quantised experts compute what their weights stand for, few rows and many."""
    experts, given = experts_of(4), inputs(num_tokens, 4)
    how: Any = {"group_size": group_size, "bits": bits, "mode": mode}
    nn.quantize(experts, **how)
    unpacked = experts_of(4)
    for name, layer in layers_of(experts).items():
        packed = layer.weight, layer.scales, layer.get("biases")
        unpacked[name].weight = mx.dequantize(*packed, **how)
    expected = naive_experts(unpacked, *given, silu64)

    assert isinstance(experts.up_proj, moe.QuantizedExpertLinear)
    np.testing.assert_allclose(experts(*given), expected, atol=1e-4)


def test_which_arrangement():
    """FA: few rows stay in order, many go into blocks; packed weights need more of them."""
    experts = experts_of(4)

    def width(num_tokens: int) -> tuple[int, bool]:
        arrangement: Arrangement = experts._arrange(inputs(num_tokens, 4)[1])
        return arrangement.tokens.shape[1], arrangement.is_sorted

    assert [width(n) for n in (1, 31, 32)] == [(1, False), (1, False), (moe.BLOCK_ROWS, True)]
    nn.quantize(experts, group_size=32, bits=4)
    assert [width(n) for n in (30, 31)] == [(1, False), (1, False)]
    assert width(32) == (moe.BLOCK_ROWS, True)


# -- global scales -------------------------------------------------------------------------


def globally_scaled(num_experts: int) -> tuple[Experts, Experts]:
    """Return experts in NVFP4 with factors of their own, and the same in float32."""
    rng = np.random.default_rng(5)
    packed, plain = (Experts(num_experts, DIMS, HIDDEN, gated=False) for _ in range(2))
    for name in ("up_proj", "down_proj"):
        factors = mx.array(rng.uniform(1e-4, 3e-4, num_experts), mx.float32)
        layer = plain[name]
        weight = mx.array(rng.normal(size=layer.weight.shape) * 100, mx.float32)
        layer.weight = weight
        quantised = layer.to_quantized(group_size=16, bits=4, mode="nvfp4")
        assert quantised.expect_global_scales()
        quantised.global_scales = factors
        packed[name] = quantised
        exact = mx.dequantize(
            quantised.weight, quantised.scales, group_size=16, bits=4, mode="nvfp4"
        )
        layer.weight = exact.astype(mx.float32) * factors[:, None, None]
    return packed, plain


@pytest.mark.parametrize("num_tokens", [1, 40, 200])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_global_scales_are_factors_on_outputs(num_tokens: int, dtype: mx.Dtype):
    """FA-7: one for each expert and projection, ahead of the activation; no dtype widens."""
    packed, plain = globally_scaled(4)
    chosen, weights = Routing(2)(mx.array(logits_of(num_tokens, 4), mx.float32))
    x = mx.random.normal((num_tokens, DIMS), key=mx.random.key(3)).astype(dtype)

    actual = packed(x, chosen, weights)
    expected = plain(x.astype(mx.float32), chosen, weights)
    tolerance = 1e-5 if dtype == mx.float32 else 2e-2
    error = np.abs(float64(actual) - float64(expected)).max() / np.abs(float64(expected)).max()

    assert actual.dtype == dtype
    assert error < tolerance


@pytest.mark.parametrize(("mode", "group_size"), [("affine", 32), ("mxfp4", 32)])
def test_other_modes_have_no_global_scales(mode: Mode, group_size: int):
    """FA-7: the tensor is then one that no parameter takes."""
    layer = moe.ExpertLinear(2, DIMS, HIDDEN)
    quantised = layer.to_quantized(group_size=group_size, bits=4, mode=mode)

    assert not quantised.expect_global_scales()
    assert "global_scales" not in quantised
