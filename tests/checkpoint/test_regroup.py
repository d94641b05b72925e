"""Stacked and split weights: names, shapes, quantisation, and what cannot be regrouped."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from neve.checkpoint.checkpoint import open_checkpoint
from neve.checkpoint.regroup import Place, place_of
from neve.errors import WeightError
from neve.layers.moe import ExpertLinear, QuantizedExpertLinear

pytestmark = pytest.mark.mlx

NUM_EXPERTS = 12  # two digits: their order is that of numbers, not of names


@pytest.fixture
def weights_of(write_checkpoint):
    """Return the weights of a checkpoint with these tensors."""

    def make(arrays, quantization=None, dtype=None):
        config = {"quantization": quantization} if quantization else {}
        return open_checkpoint(write_checkpoint(arrays, config), dtype=dtype).weights

    return make


def experts(kind="weight", num_experts=NUM_EXPERTS, shape=(4, 64)):
    mx.random.seed(0)
    return {f"m.experts.{i}.up.{kind}": mx.random.normal(shape) for i in range(num_experts)}


def stack_of(arrays):
    return mx.stack(list(arrays.values()))


def make_model() -> Any:
    """Return a module with the stack as its only parameter."""
    model = nn.Module()
    model.m = nn.Module()
    model.m.experts = nn.Module()
    model.m.experts.up = ExpertLinear(NUM_EXPERTS, 64, 4)
    return model


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("m.experts.3.up.weight", Place("m.experts.up.weight", 3)),
        ("experts.10.up", Place("experts.up", 10)),
        ("m.layers.2.experts.0.up.weight", Place("m.layers.2.experts.up.weight", 0)),
        ("m.layers.2.up.weight", None),
        ("m.shared_experts.2.up.weight", None),
        ("m.experts.up.weight", None),
        ("m.experts.03.up.weight", None),
        ("m.experts.3", None),
    ],
)
def test_places(name, place):
    """FA: only numbered names directly below the component are meant."""
    assert place_of(name, "experts") == place


def test_stacked(weights_of):
    """FA: numbered tensors become rows of one, in the order of their numbers; others stay."""
    arrays = experts()
    weights = weights_of({**arrays, "m.gate.weight": mx.ones((2, 2))}).stacked("experts")

    assert set(weights) == {"m.experts.up.weight", "m.gate.weight"}
    assert weights.shape("m.experts.up.weight") == (NUM_EXPERTS, 4, 64)
    assert mx.array_equal(weights["m.experts.up.weight"], stack_of(arrays))


def test_what_is_stacked_already_stays(weights_of):
    """FA: a checkpoint without numbers is not changed."""
    arrays = {"m.experts.up.weight": stack_of(experts())}
    weights = weights_of(arrays).stacked("experts")

    assert mx.array_equal(weights["m.experts.up.weight"], arrays["m.experts.up.weight"])


@pytest.mark.parametrize("dtype", [None, mx.float32, mx.bfloat16])
def test_a_stack_is_loaded(weights_of, dtype):
    """FA: a module takes a stack like any other tensor, cast to the model's dtype."""
    arrays, model = experts(), make_model()
    weights_of(arrays, dtype=dtype).stacked("experts").load_into(model)
    expected = stack_of(arrays)

    assert mx.array_equal(model.m.experts.up.weight, expected.astype(dtype or mx.float32))


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("m.experts.5.up.weight"),
        lambda arrays: arrays.pop("m.experts.0.up.weight"),
        lambda arrays: arrays.update({"m.experts.5.up.weight": mx.ones((5, 64))}),
        lambda arrays: arrays.update({"m.experts.5.up.weight": mx.ones((4, 64), mx.uint32)}),
        lambda arrays: arrays.update({"m.experts.up.weight": mx.ones((12, 4, 64))}),
    ],
    ids=["hole", "no first", "shape", "dtype", "both"],
)
def test_what_cannot_be_stacked(weights_of, change):
    """FW-2: a hole, tensors that differ, or a stack beside its parts name the stack."""
    arrays = experts()
    change(arrays)

    with pytest.raises(WeightError, match=r"m\.experts\.up\.weight"):
        weights_of(arrays).stacked("experts")


def quantised(arrays, bits=4):
    """Return the parts of each tensor, packed on its own."""
    result = {}
    for name, array in arrays.items():
        path = name.removesuffix(".weight")
        packed = zip(("weight", "scales", "biases"), mx.quantize(array, 32, bits), strict=True)
        result.update({f"{path}.{kind}": part for kind, part in packed})
    return result


@pytest.mark.parametrize("layers", [{}, {"m.experts.7.up": {"group_size": 32, "bits": 4}}])
def test_a_quantised_stack_is_loaded(weights_of, layers):
    """FA: packed weights, scales and biases are stacked alike."""
    arrays, model = experts(), make_model()
    how = {"group_size": 32, "bits": 4, **layers}
    weights_of(quantised(arrays), how).stacked("experts").load_into(model)
    up, expected = model.m.experts.up, mx.quantize(stack_of(arrays), 32, 4)

    assert isinstance(up, QuantizedExpertLinear)
    parts = zip((up.weight, up.scales, up.biases), expected, strict=True)
    assert all(mx.array_equal(part, other) for part, other in parts)


def test_settings_of_single_experts_follow(weights_of):
    """FA: where config.json names each expert, the stack is quantised as it says."""
    layers = {f"m.experts.{i}.up": {"group_size": 32, "bits": 8} for i in range(NUM_EXPERTS)}
    model = make_model()
    arrays = quantised(experts(), bits=8)
    weights_of(arrays, {"group_size": 64, "bits": 4, **layers}).stacked("experts").load_into(
        model
    )

    assert (model.m.experts.up.bits, model.m.experts.up.group_size) == (8, 32)


def test_experts_with_different_settings(weights_of):
    """FA: parts of one stack must be quantised alike."""
    layers = {f"m.experts.{i}.up": {"bits": 4 + 4 * (i == 3)} for i in range(NUM_EXPERTS)}

    with pytest.raises(WeightError, match=r"m\.experts\.up: .* m\.experts\.3\.up among them"):
        weights_of(quantised(experts()), {"bits": 4, **layers}).stacked("experts")


def gate_and_up(name):
    if ".gate_up." not in name:
        return None
    return [name.replace("gate_up", part) for part in ("gate", "up")]


@pytest.mark.parametrize("shape", [(6, 64), (3, 6, 64)])
def test_split(weights_of, shape):
    """FA: a fused tensor is cut into equal parts by its outputs, first names first."""
    fused = mx.random.normal(shape)
    weights = weights_of({"m.gate_up.weight": fused, "m.down.weight": mx.ones((2, 2))})
    weights = weights.split(gate_and_up)

    assert set(weights) == {"m.gate.weight", "m.up.weight", "m.down.weight"}
    assert weights.shape("m.up.weight") == (*shape[:-2], 3, 64)
    assert mx.array_equal(weights["m.gate.weight"], fused[..., :3, :])
    assert mx.array_equal(weights["m.up.weight"], fused[..., 3:, :])


def test_split_quantised(weights_of):
    """FA: the parts of a quantised tensor are quantised as it was."""
    fused = mx.random.normal((6, 64))
    how = {"group_size": 64, "bits": 4, "m.gate_up": {"group_size": 32, "bits": 8}}
    weights = weights_of(quantised({"m.gate_up.weight": fused}, bits=8), how)
    weights = weights.split(gate_and_up)
    model = nn.Module()
    model.m = nn.Module()
    model.m.gate, model.m.up = (nn.Linear(64, 3, bias=False) for _ in range(2))
    weights.load_into(model)

    assert model.m.up.bits == 8
    for part, rows in ((model.m.gate, fused[:3]), (model.m.up, fused[3:])):
        assert mx.array_equal(part.weight, mx.quantize(rows, 32, 8)[0])


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"m.gate_up.weight": mx.ones((5, 4))}, r"\[5, 4\] cannot be cut into 2"),
        ({"m.gate_up.weight": mx.ones((6,))}, r"\[6\] cannot be cut into 2"),
        ({"m.gate_up.weight": mx.ones((6, 4)), "m.up.weight": mx.ones((3, 4))}, "two tensors"),
    ],
)
def test_what_cannot_be_split(weights_of, arrays, says):
    """FW-2: an odd number of outputs, a vector, or a part that is there already."""
    with pytest.raises(WeightError, match=says):
        weights_of(arrays).split(gate_and_up)


def test_memory(weights_of):
    """FA: a stack is read once, beside its parts and nothing else."""
    arrays = experts(shape=(256, 256))
    size = sum(array.nbytes for array in arrays.values())
    weights = weights_of(arrays).stacked("experts")
    del arrays
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(weights["m.experts.up.weight"])

    assert mx.get_peak_memory() - before <= 2.1 * size
