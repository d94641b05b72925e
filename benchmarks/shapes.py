"""Models of about 300 million random parameters in each family's proportions, against mlx-lm.

The trained checkpoints are so small that a step costs what its operations cost to start.
Here most of it is the reading of weights.
"""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .figures import Figure
from .hybrids import CHECKPOINTS, Pair, ratios

_LFM2 = {
    "vocab_size": 16_384,
    "hidden_size": 1024,
    "num_hidden_layers": 16,
    "layer_types": [
        "full_attention" if layer in {2, 5, 8, 10, 12, 14} else "conv" for layer in range(16)
    ],
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "intermediate_size": 6656,
    "block_ff_dim": 6656,
    "block_multiple_of": 256,
    "block_dim": 1024,
    "conv_dim": 1024,
}

_QWEN3_5 = {
    "vocab_size": 32_768,
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "layer_types": [
        "linear_attention" if (layer + 1) % 4 else "full_attention" for layer in range(12)
    ],
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "intermediate_size": 3584,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}

_NEMOTRON_H = {
    "vocab_size": 32_768,
    "hidden_size": 1024,
    "num_hidden_layers": 20,
    "hybrid_override_pattern": "MEME*MEME*MEME*MEME-",
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 4096,
    "mamba_num_heads": 32,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "chunk_size": 128,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 512,
    "moe_shared_expert_intermediate_size": 1024,
}

_GEMMA4 = {
    "vocab_size": 32_768,
    "hidden_size": 1024,
    "num_hidden_layers": 20,
    "layer_types": [
        "sliding_attention" if (layer + 1) % 5 else "full_attention" for layer in range(20)
    ],
    "sliding_window": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "global_head_dim": 256,
    "intermediate_size": 3584,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "use_double_wide_mlp": False,
}

_MUSE_GLIMMER = {
    "vocab_size": 16_384,
    "hidden_size": 1024,
    "num_hidden_layers": 20,
    "layer_types": [
        "sliding_attention" if (layer + 1) % 4 else "full_attention" for layer in range(20)
    ],
    "layer_rope_theta": [500_000.0 if (layer + 1) % 4 else 0 for layer in range(20)],
    "sliding_window": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 3584,
}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "lfm2": _LFM2,
    "qwen3_5": {"text_config": _QWEN3_5},
    "nemotron_h": _NEMOTRON_H,
    # mlx-lm looks for gemma4's vocabulary beside the text model's config
    "gemma4": {"text_config": _GEMMA4, "vocab_size": _GEMMA4["vocab_size"]},
    "muse_glimmer": {"text_config": _MUSE_GLIMMER},
}
"""Checkpoint of the repository -> what is larger than in its config.json."""


def shapes() -> list[Figure]:
    """Each family's shape, one after the other: both engines hold 1.2 GB of weights."""
    return [figure for family in SHAPES for figure in _shape(family)]


def _shape(family: str) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        count = write_checkpoint(family, path)
        pair = Pair.load(path, pool_mb=512)
        try:
            return ratios(f"{family}, {count / 1e6:.0f}M", pair, max_tokens=24)
        finally:
            pair.ours.close()
            del pair
            gc.collect()
            mx.clear_cache()


def write_checkpoint(family: str, path: Path) -> int:
    """Write random weights, a config and a tokenizer to `path`; return the parameters."""
    for file in (CHECKPOINTS / family).glob("*token*.json"):
        shutil.copy(file, path)
    config = _merged(
        json.loads((CHECKPOINTS / family / "config.json").read_text()), SHAPES[family]
    )
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = _random_weights(config)
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
    return sum(array.size for array in weights.values())


def _merged(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    nested = {
        key: _merged(config[key], value) if isinstance(value, Mapping) else value
        for key, value in changes.items()
    }
    return config | nested


def _random_weights(config: dict[str, Any]) -> dict[str, mx.array]:
    """Return weights under the names that MLX converters write, norms of ones."""
    from mlx_lm.utils import _get_classes

    model, arguments = _get_classes(config)
    parameters: Any = tree_flatten(model(arguments.from_dict(config)).parameters())
    mx.random.seed(0)
    return {name: _random(name, array.shape) for name, array in parameters}


def _random(name: str, shape: tuple[int, ...]) -> mx.array:
    if len(shape) == 1 and name.endswith(".weight"):
        return mx.ones(shape)
    return mx.random.normal(shape) * 0.02
