"""The tiny Qwen3.5 checkpoints, variants of them, and mlx-lm's model as a reference."""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import pytest

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"

Tensors: TypeAlias = dict[str, mx.array]
WriteVariant: TypeAlias = Callable[[dict[str, Any], Tensors], Path]


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3_5_moe"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    """A trained tiny checkpoint: the dense one, then the one with experts."""
    return CHECKPOINTS / request.param


@pytest.fixture
def raw_config(checkpoint: Path) -> dict[str, Any]:
    """Its config.json."""
    return json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))


@pytest.fixture
def tensors(checkpoint: Path) -> Tensors:
    """Its weights, in float32."""
    stored: Any = mx.load(str(checkpoint / "model.safetensors"))
    return {name: array.astype(mx.float32) for name, array in stored.items()}


@pytest.fixture
def write_variant(tmp_path: Path, checkpoint: Path) -> WriteVariant:
    """Write a checkpoint with another config.json and other weights."""

    def write(config: dict[str, Any], tensors: Tensors) -> Path:
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(checkpoint / file, tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
        return tmp_path

    return write


@pytest.fixture
def reference(raw_config: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """Make mlx-lm's model of a config."""
    name = f"mlx_lm.models.{raw_config['model_type']}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name, reason="mlx-lm is not installed")
        module = importlib.import_module(name)

    def make(config: dict[str, Any]) -> Any:
        mx.random.seed(0)
        # it changes what it is given
        text = config["text_config"] | {
            "rope_parameters": dict(config["text_config"]["rope_parameters"])
        }
        return module.Model(module.ModelArgs.from_dict({**config, "text_config": text}))

    return make


@pytest.fixture
def converted(reference, raw_config, tensors) -> Any:
    """mlx-lm's model with the trained weights, which it converts to MLX's layout."""
    model = reference(raw_config)
    text = {k: v for k, v in tensors.items() if ".visual." not in k}
    model.load_weights(list(model.sanitize(text).items()))
    return model
