"""Opened checkpoints: config, weights and tokenizer together."""

from __future__ import annotations

import json
import math

import gguf
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import safetensors

from neve.checkpoint.checkpoint import open_checkpoint
from neve.errors import CheckpointError, ConfigError, UnsupportedModelError

pytestmark = pytest.mark.mlx


@pytest.fixture
def directory(write_checkpoint):
    def make(config="{}", **files):
        path = write_checkpoint({"w": mx.ones(2)})
        (path / "config.json").write_text(config)
        for name, text in files.items():
            (path / f"{name}.json").write_text(text)
        return path

    return make


def test_the_tiny_checkpoint(qwen3_dir):
    """FA-1: the tiny qwen3 checkpoint opens with its config, tensors and tokenizer."""
    checkpoint = open_checkpoint(qwen3_dir, dtype=mx.float32)

    expected = json.loads((qwen3_dir / "config.json").read_text())
    assert checkpoint.config == expected
    assert checkpoint.generation_config == json.loads(
        (qwen3_dir / "generation_config.json").read_text()
    )
    assert checkpoint.format == "safetensors"
    assert checkpoint.tokenizer_dir == checkpoint.path == qwen3_dir
    assert checkpoint.gguf_metadata is None
    assert checkpoint.stored_dtype == mx.bfloat16
    assert checkpoint.weights.quantization is None


class Qwen3Tensors(nn.Module):
    """The parameters of the tiny checkpoint, without what is computed with them."""

    def __init__(self, config):
        super().__init__()
        hidden, head = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.model.norm = nn.RMSNorm(hidden)
        self.model.layers = []
        for _ in range(config["num_hidden_layers"]):
            layer = nn.Module()
            layer.input_layernorm = nn.RMSNorm(hidden)
            layer.post_attention_layernorm = nn.RMSNorm(hidden)
            layer.self_attn = nn.Module()
            layer.self_attn.q_proj = nn.Linear(hidden, heads * head, bias=False)
            layer.self_attn.k_proj = nn.Linear(hidden, kv_heads * head, bias=False)
            layer.self_attn.v_proj = nn.Linear(hidden, kv_heads * head, bias=False)
            layer.self_attn.o_proj = nn.Linear(heads * head, hidden, bias=False)
            layer.self_attn.q_norm = nn.RMSNorm(head)
            layer.self_attn.k_norm = nn.RMSNorm(head)
            layer.mlp = nn.Module()
            layer.mlp.gate_proj = nn.Linear(hidden, config["intermediate_size"], bias=False)
            layer.mlp.up_proj = nn.Linear(hidden, config["intermediate_size"], bias=False)
            layer.mlp.down_proj = nn.Linear(config["intermediate_size"], hidden, bias=False)
            self.model.layers.append(layer)


def test_loading_the_tiny_checkpoint(qwen3_dir):
    """FA-1: every tensor of the tiny checkpoint finds its parameter, exactly, in float32."""
    checkpoint = open_checkpoint(qwen3_dir, dtype=mx.float32)
    module = Qwen3Tensors(checkpoint.config)

    checkpoint.weights.load_into(module)

    raw = dict(safetensors.deserialize((qwen3_dir / "model.safetensors").read_bytes()))
    for name in ("model.embed_tokens.weight", "model.layers.5.mlp.down_proj.weight"):
        half = np.frombuffer(raw[name]["data"], np.uint16).astype(np.uint32)
        expected = (half << 16).view(np.float32).reshape(raw[name]["shape"])
        value = module
        for part in name.split("."):
            value = value[int(part)] if part.isdigit() else value[part]
        assert value.dtype == mx.float32
        assert np.array_equal(np.array(value), expected)


def test_every_tiny_checkpoint_opens(qwen3_dir):
    """FA: all the tiny checkpoints are sound, bare `Infinity` included."""
    directories = [path.parent for path in qwen3_dir.parent.glob("*/config.json")]

    sizes = {path.name: len(open_checkpoint(path, dtype=None).weights) for path in directories}

    assert len(sizes) >= 9
    assert min(sizes.values()) > 10


def test_bare_infinity(directory):
    """A config.json may hold `Infinity` and `NaN`, as transformers writes them."""
    config = open_checkpoint(directory('{"limit": [0, Infinity], "x": NaN}'), dtype=None).config

    assert config["limit"] == [0, math.inf]
    assert math.isnan(config["x"])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ("[1]", ""),
        ("{", ""),
        ('{"quantization": {"bits": 7}}', "quantization.bits"),
    ],
)
def test_a_malformed_config(directory, text, key):
    """A config.json that is no object, or says something twice, is refused."""
    with pytest.raises(ConfigError, match=r"config\.json: ") as caught:
        open_checkpoint(directory(text), dtype=None)

    assert caught.value.key == key


def test_a_malformed_generation_config(directory):
    """generation_config.json is held to the same rules, under its own name."""
    path = directory(generation_config='{"a": 1, "a": 2}')

    with pytest.raises(CheckpointError, match=r"generation_config\.json: key 'a' is repeated"):
        open_checkpoint(path, dtype=None)


def test_files_that_may_be_missing(directory):
    """generation_config.json may be missing, config.json may not."""
    path = directory()

    assert open_checkpoint(path, dtype=None).generation_config is None
    (path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"there is no config\.json"):
        open_checkpoint(path, dtype=None)


def test_another_quantisation(directory):
    """A checkpoint quantised in another format is refused at once."""
    with pytest.raises(UnsupportedModelError, match="gptq"):
        open_checkpoint(
            directory('{"quantization_config": {"quant_method": "gptq"}}'), dtype=None
        )


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ('{"dtype": "float16"}', mx.float16),
        ('{"torch_dtype": "bfloat16"}', mx.bfloat16),
        ('{"dtype": null, "torch_dtype": "float32"}', mx.float32),
        ('{"text_config": {"dtype": "bfloat16"}}', mx.bfloat16),
        ("{}", None),
    ],
)
def test_stored_dtype(directory, text, dtype):
    """The dtype is read under its new and its old key, also from text_config."""
    assert open_checkpoint(directory(text), dtype=None).stored_dtype == dtype


@pytest.mark.parametrize("value", ['"int8"', "16", "[]"])
def test_an_unknown_dtype(directory, value):
    """A dtype that no model computes in is a config error."""
    checkpoint = open_checkpoint(directory(f'{{"dtype": {value}}}'), dtype=None)

    with pytest.raises(ConfigError, match=r"dtype: must be one of float32, float16, bfloat16"):
        _ = checkpoint.stored_dtype


def test_gguf_into_a_module(tmp_path, rng):
    """FA: a GGUF file's tensors are dequantised and cast on their way into a module."""
    raw = gguf.quantize(
        rng.normal(size=(8, 32)).astype(np.float32), gguf.GGMLQuantizationType.Q8_0
    )
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "snow")
    writer.add_tensor("token_embd.weight", raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    module = nn.Module()
    module.model = nn.Module()
    module.model.embed_tokens = nn.Embedding(8, 32)

    open_checkpoint(path, dtype=mx.float16).weights.load_into(module)

    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType.Q8_0).astype(np.float16)
    assert module.model.embed_tokens.weight.dtype == mx.float16
    assert np.array_equal(np.array(module.model.embed_tokens.weight), expected)
