"""Weights: from files, renamed and mapped, into a module, all or nothing."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map

from neve.checkpoint.checkpoint import open_checkpoint
from neve.checkpoint.safetensors_header import ITEMSIZES
from neve.checkpoint.shards import DTYPES, open_shards
from neve.errors import CheckpointError, WeightError

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.mlx

MODES = [("affine", 64, bits) for bits in (2, 3, 4, 5, 6, 8)] + [
    ("affine", 32, 4),
    ("mxfp4", 32, 4),
    ("mxfp8", 32, 8),
    ("nvfp4", 16, 4),
]


def flat(module: nn.Module) -> Mapping[str, mx.array]:
    return dict(tree_flatten(module.parameters()))


def same(a: mx.array, b: mx.array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(mx.all(a == b))


def ids() -> mx.array:
    return mx.array([[1, 5, 40, 3]])


def weights_of(directory, dtype=None):
    return open_checkpoint(directory, dtype=dtype).weights


def write_shards(directory, shards, weight_map):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text("{}")
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, arrays in shards.items():
        mx.save_safetensors(str(directory / name), arrays)
    return directory


def test_both_dtype_tables_agree():
    """Every dtype that the header admits has an MLX dtype of the same width."""
    widths = {name: dtype.size for name, dtype in DTYPES.items()}

    assert widths == dict(ITEMSIZES)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype_loads(tmp_path, write_safetensors, name):
    """What the header says of a tensor's dtype is what MLX makes of it."""
    size = 2 * ITEMSIZES[name]
    header = {"w": {"dtype": name, "shape": [2], "data_offsets": [0, size]}}
    write_safetensors(tmp_path / "model.safetensors", header, bytes(size))

    tensor = open_shards(tmp_path)["w"]

    assert tensor.read().dtype == tensor.dtype == DTYPES[name]


def test_a_single_file(make_model, write_checkpoint):
    """FA: a module takes every tensor of model.safetensors, bit for bit."""
    source, target = make_model(1), make_model(2)

    weights_of(write_checkpoint(flat(source))).load_into(target)

    assert all(same(flat(target)[name], value) for name, value in flat(source).items())
    assert mx.array_equal(target(ids()), source(ids()))


def test_shards(make_model, tmp_path):
    """FA: a module takes its tensors from several files."""
    source, target = make_model(1), make_model(2)
    names = sorted(flat(source))
    first = {name: flat(source)[name] for name in names[::2]}
    second = {name: flat(source)[name] for name in names[1::2]}
    shards = {"model-1.safetensors": first, "model-2.safetensors": second}
    weight_map = {name: file for file, arrays in shards.items() for name in arrays}

    weights_of(write_shards(tmp_path / "c", shards, weight_map)).load_into(target)

    assert mx.array_equal(target(ids()), source(ids()))


@pytest.mark.parametrize(
    ("weight_map", "says", "attribute"),
    [
        ({"a": 1, "b": 1, "c": 2}, "model-1.* lacks: b", "missing"),
        ({"a": 1}, "does not list model-2", None),
        ({"a": 1, "c": 3}, "missing: model-3", None),
        ({"a": 1, "d": 2}, "model-2.* lacks: d", "missing"),
        ({"a": 1, "c": 1}, "does not list model-2", None),
    ],
)
def test_an_index_that_is_wrong(tmp_path, weight_map, says, attribute):
    """A disagreement between index and files is refused with the file's name."""
    shards = {
        "model-1.safetensors": {"a": mx.zeros(2)},
        "model-2.safetensors": {"c": mx.ones(2)},
    }
    files = {name: f"model-{number}.safetensors" for name, number in weight_map.items()}
    directory = write_shards(tmp_path / "c", shards, files)

    with pytest.raises(CheckpointError, match=says) as caught:
        weights_of(directory)
    if attribute:
        assert getattr(caught.value, attribute)


def test_a_tensor_that_the_index_does_not_list(tmp_path):
    """A tensor that stands in a shard and not in the index is refused by name."""
    shards = {"model-1.safetensors": {"a": mx.zeros(2), "extra": mx.zeros(2)}}
    directory = write_shards(tmp_path / "c", shards, {"a": "model-1.safetensors"})

    with pytest.raises(WeightError, match=r"model-1\.safetensors: holds .* not list.*: extra"):
        weights_of(directory)


def test_the_mapping(write_checkpoint):
    """Names and shapes are known; arrays are read when they are asked for, as often as that."""
    weights = weights_of(write_checkpoint({"a": mx.arange(4), "b": mx.zeros((2, 3))}))

    assert set(weights) == {"a", "b"}
    assert len(weights) == 2
    assert "a" in weights
    assert "c" not in weights
    assert weights.shape("b") == (2, 3)
    assert weights["a"].tolist() == weights["a"].tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        weights["c"]


def test_renamed(write_checkpoint):
    """Names follow the function, None drops a tensor, and the original stays."""
    weights = weights_of(write_checkpoint({"m.a": mx.ones(2), "inv_freq": mx.ones(2)}))

    renamed = weights.renamed(lambda n: n.removeprefix("m.") if n.startswith("m.") else None)

    assert list(renamed) == ["a"]
    assert set(weights) == {"m.a", "inv_freq"}


def test_names_that_collide(write_checkpoint):
    """Two tensors under one name are refused."""
    weights = weights_of(write_checkpoint({"a": mx.ones(2), "b": mx.ones(2)}))

    with pytest.raises(WeightError, match="two tensors would be called 'x'"):
        weights.renamed(lambda _: "x")


def test_mapped(write_checkpoint):
    """A mapped tensor is computed when it is read; its shape is known before."""
    weights = weights_of(write_checkpoint({"a": mx.array([[1.0, 2.0, 3.0]]), "b": mx.ones(2)}))

    mapped = weights.mapped(lambda name, w: w.T + 1 if name == "a" else w)
    again = mapped.mapped(lambda _, w: w * 2)

    assert mapped.shape("a") == (3, 1)
    assert mapped["a"].tolist() == [[2.0], [3.0], [4.0]]
    assert again["a"].tolist() == [[4.0], [6.0], [8.0]]
    assert weights.shape("a") == (1, 3)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, None])
def test_dtypes(make_model, write_checkpoint, dtype):
    """Floating parameters are cast; those that must stay float32 do so whatever the dtype."""
    source = make_model(1)
    source.set_dtype(mx.bfloat16)
    target = make_model(2)

    weights_of(write_checkpoint(flat(source)), dtype).load_into(target, keep_float32=["A_log"])

    loaded = flat(target)
    expected = mx.bfloat16 if dtype is None else dtype
    assert loaded["layers.0.A_log"].dtype == mx.float32
    assert {v.dtype for k, v in loaded.items() if "A_log" not in k} == {expected}


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = mx.zeros((2,), mx.int32)
        self.mask = mx.zeros((2,), mx.bool_)


def test_integers_are_never_cast(write_checkpoint):
    """Integer and boolean parameters keep their dtype."""
    stored = {"steps": mx.array([3, 2**30 + 1], mx.int32), "mask": mx.array([True, False])}
    target = Counter()

    weights_of(write_checkpoint(stored), mx.bfloat16).load_into(target, keep_float32=["steps"])

    assert same(target.steps, stored["steps"])
    assert same(target.mask, stored["mask"])


def test_one_error_names_everything(make_model, write_checkpoint):
    """Missing, unexpected and mis-shaped tensors come as one error; nothing is assigned."""
    arrays = dict(flat(make_model(1)))
    del arrays["norm.weight"]
    arrays["lm_head.weight"] = mx.zeros((2, 2))
    arrays["layers.0.A_log"] = mx.zeros((5,))
    arrays["layers.1.A_log"] = mx.zeros((4,), mx.int32)
    target = make_model(2)
    before = dict(flat(target))

    with pytest.raises(WeightError) as caught:
        weights_of(write_checkpoint(arrays)).load_into(target)

    assert caught.value.missing == ("norm.weight",)
    assert caught.value.unexpected == ("lm_head.weight",)
    assert len(caught.value.mismatched) == 2
    assert "layers.0.A_log: the checkpoint has shape [5] of float32" in str(caught.value)
    assert "the model needs shape [4] of a floating type" in caught.value.mismatched[1]
    assert all(flat(target)[name] is before[name] for name in before)


def test_a_long_error_is_shortened(make_model, write_checkpoint):
    """The message shows eight names, the attributes all of them."""
    names = {f"extra.{i}": mx.zeros(1) for i in range(20)}
    target = make_model(2)

    with pytest.raises(WeightError, match=r"20 unexpected \(.*, and 12 more\)") as caught:
        weights_of(write_checkpoint({**flat(target), **names})).load_into(target)

    assert len(caught.value.unexpected) == 20


def dequantised(module: nn.Module) -> nn.Module:
    """Return the layers' plain form with the values that the quantised ones stand for."""

    def plain(layer: nn.Module) -> nn.Module:
        if not isinstance(layer, nn.QuantizedLinear | nn.QuantizedEmbedding):
            return layer
        weight = mx.dequantize(
            layer.weight,
            layer.scales,
            layer.biases,
            group_size=layer.group_size,
            bits=layer.bits,
            mode=layer.mode,
        ).astype(mx.float32)
        if isinstance(layer, nn.QuantizedEmbedding):
            dense: nn.Module = nn.Embedding(*weight.shape)
        else:
            dense = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in layer)
            if "bias" in layer:
                dense.bias = layer.bias
        dense.weight = weight
        return dense

    leaves = tree_map(plain, module.leaf_modules(), is_leaf=nn.Module.is_module)
    module.update_modules(leaves)
    return module


def quantise(model, mode, group_size, bits, skip=()):
    predicate = lambda path, layer: hasattr(layer, "to_quantized") and path not in skip  # noqa: E731
    nn.quantize(model, group_size, bits, mode=mode, class_predicate=predicate)
    return model


def config_of(mode, group_size, bits, **layers):
    return {"quantization": {"group_size": group_size, "bits": bits, "mode": mode, **layers}}


@pytest.mark.parametrize(("mode", "group_size", "bits"), MODES)
def test_quantised(make_model, write_checkpoint, mode, group_size, bits):
    """FA: a checkpoint in each mode computes what its dequantised weights compute."""
    source = quantise(make_model(1), mode, group_size, bits)
    directory = write_checkpoint(flat(source), config_of(mode, group_size, bits))
    target = make_model(2)

    weights_of(directory, mx.float32).load_into(target)

    result, expected = target(ids()), dequantised(source)(ids())
    assert isinstance(target.layers[0].mlp.down_proj, nn.QuantizedLinear)
    assert result.dtype == mx.float32
    assert mx.allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mode", "group_size", "bits"), [MODES[2], *MODES[-3:]])
def test_quantised_dtypes(make_model, write_checkpoint, mode, group_size, bits):
    """Scales of affine layers are cast; packed weights and 8-bit scales never are."""
    source = quantise(make_model(1), mode, group_size, bits)
    directory = write_checkpoint(flat(source), config_of(mode, group_size, bits))
    target = make_model(2)

    weights_of(directory, mx.bfloat16).load_into(target)

    layer = target.layers[0].q_proj
    affine = mode == "affine"
    assert layer.weight.dtype == mx.uint32
    assert layer.scales.dtype == (mx.bfloat16 if affine else mx.uint8)
    assert layer.bias.dtype == mx.bfloat16
    assert target(ids()).dtype == mx.bfloat16
    assert not affine or layer.biases.dtype == mx.bfloat16


def test_mixed_layers(make_model, write_checkpoint):
    """FA: layers with settings of their own, layers without, and a plain tied embedding."""
    plain = ("embed_tokens", "layers.0.q_proj", "layers.1.mlp.down_proj")
    source = quantise(make_model(1), "affine", 64, 4, skip=plain)
    source.layers[1].mlp.down_proj = source.layers[1].mlp.down_proj.to_quantized(32, 8)
    layers = {"layers.1.mlp.down_proj": {"group_size": 32, "bits": 8}, "layers.0.q_proj": False}
    directory = write_checkpoint(flat(source), config_of("affine", 64, 4, **layers))
    target = make_model(2)

    weights_of(directory).load_into(target)

    assert type(target.embed_tokens) is nn.Embedding
    assert type(target.layers[0].q_proj) is nn.Linear
    assert target.layers[1].mlp.down_proj.bits == 8
    assert mx.allclose(target(ids()), dequantised(source)(ids()), rtol=1e-4, atol=1e-4)


def test_single_layers_follow_new_names(make_model, write_checkpoint):
    """A layer's own settings are found under the name that the family gives it."""
    source = quantise(make_model(1), "affine", 32, 4, skip=("embed_tokens",))
    source.embed_tokens = source.embed_tokens.to_quantized(64, 8)
    arrays = {f"model.{name}": value for name, value in flat(source).items()}
    layers = {"model.embed_tokens": {"group_size": 64, "bits": 8}}
    directory = write_checkpoint(arrays, config_of("affine", 32, 4, **layers))
    target = make_model(2)

    weights_of(directory).renamed(lambda n: n.removeprefix("model.")).load_into(target)

    assert (target.embed_tokens.bits, target.embed_tokens.group_size) == (8, 64)
    assert mx.array_equal(target(ids()), source(ids()))


@pytest.mark.parametrize(
    ("quantization", "attribute"),
    [
        (None, "unexpected"),
        ({"group_size": 64, "bits": 8}, "mismatched"),
        ({"group_size": 32, "bits": 4}, "mismatched"),
        ({"mode": "mxfp4"}, "unexpected"),
        ({"group_size": 64, "bits": 4, "layers.0.q_proj": False}, "unexpected"),
        ({"group_size": 128, "bits": 4}, "mismatched"),
    ],
)
def test_quantisation_that_does_not_fit(make_model, write_checkpoint, quantization, attribute):
    """Packed tensors that config.json describes otherwise are refused, not misread."""
    source = quantise(make_model(1), "affine", 64, 4)
    config = {} if quantization is None else {"quantization": quantization}
    target = make_model(2)

    with pytest.raises(WeightError) as caught:
        weights_of(write_checkpoint(flat(source), config)).load_into(target)

    assert getattr(caught.value, attribute)
    assert type(target.layers[0].q_proj) is nn.Linear


def test_a_layer_that_lacks_its_scales(make_model, write_checkpoint):
    """A layer that config.json names as quantised must have its scales."""
    source = make_model(1)
    layers = {"layers.0.q_proj": {"group_size": 64, "bits": 4}}
    directory = write_checkpoint(flat(source), config_of("affine", 64, 4, **layers))

    with pytest.raises(WeightError) as caught:
        weights_of(directory).load_into(make_model(2))

    assert caught.value.missing == ("layers.0.q_proj.biases", "layers.0.q_proj.scales")


def test_memory(make_model, write_checkpoint):
    """Casting needs about one tensor beside the parameters, not a second copy of the model."""
    sizes = {"vocab": 512, "dims": 256, "num_layers": 6}
    source = make_model(1, **sizes)
    source.set_dtype(mx.bfloat16)
    arrays = flat(source)
    largest = max(value.nbytes for value in arrays.values())
    needed = 2 * sum(value.nbytes for value in arrays.values())
    directory = write_checkpoint(arrays)
    del source, arrays
    mx.random.seed(0)
    target = type(make_model(1))(**sizes)
    checkpoint = open_checkpoint(directory, dtype=mx.float32)
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    checkpoint.weights.load_into(target)

    assert mx.get_peak_memory() - before <= needed + 4 * largest
    assert checkpoint.weights.shape("norm.weight") == (256,)


def test_threads(make_model, write_checkpoint):
    """A checkpoint opened on one thread is loaded and used on another."""
    source = make_model(1)
    expected = source(ids()).tolist()
    weights = weights_of(write_checkpoint(flat(source)))
    results: list[object] = []

    def work() -> None:
        target = make_model(2)
        weights.mapped(lambda _, w: w * 1).load_into(target)
        results.append(target(ids()).tolist())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert results == [expected]
