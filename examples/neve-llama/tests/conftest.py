"""A tiny Llama checkpoint with random weights, made here: no download, nothing to ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "tie_word_embeddings": False,
}


def random_weights() -> dict[str, mx.array]:
    """Return weights under Hugging Face's names."""
    mx.random.seed(7)
    shapes = {"model.embed_tokens": (256, 128), "lm_head": (256, 128)}
    for layer in range(CONFIG["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.self_attn.{name}_proj": (128, 128) for name in "qo"}
        shapes |= {f"{block}.self_attn.{name}_proj": (64, 128) for name in "kv"}
        shapes |= {f"{block}.mlp.{name}_proj": (256, 128) for name in ("gate", "up")}
        shapes |= {f"{block}.mlp.down_proj": (128, 256)}
        norms = ("input_layernorm", "post_attention_layernorm")
        shapes |= {f"{block}.{name}": (128,) for name in norms}
    shapes |= {"model.norm": (128,)}
    return {
        f"{name}.weight": mx.ones(shape) if len(shape) == 1 else mx.random.normal(shape) * 0.1
        for name, shape in shapes.items()
    }


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: i for i, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoint."""
    path = tmp_path_factory.mktemp("tiny-llama")
    (path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    mx.save_safetensors(str(path / "model.safetensors"), random_weights())
    byte_tokenizer().save(str(path / "tokenizer.json"))
    return path
