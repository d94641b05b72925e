"""The tiny Muse-Glimmer checkpoint, and variants of it."""

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

CHECKPOINT = Path(__file__).parents[3] / "checkpoints" / "muse_glimmer"

Tensors: TypeAlias = dict[str, mx.array]
WriteVariant: TypeAlias = Callable[[dict[str, Any], Tensors], Path]


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The trained tiny checkpoint."""
    return CHECKPOINT


@pytest.fixture(scope="session")
def raw_config() -> dict[str, Any]:
    """Its config.json."""
    return json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))


@pytest.fixture
def tensors() -> Tensors:
    """Its weights, in float32."""
    stored: Any = mx.load(str(CHECKPOINT / "model.safetensors"))
    return {name: array.astype(mx.float32) for name, array in stored.items()}


@pytest.fixture
def write_variant(tmp_path_factory: pytest.TempPathFactory) -> WriteVariant:
    """Write a checkpoint with another config.json and other weights."""

    def write(config: dict[str, Any], tensors: Tensors) -> Path:
        folder = tmp_path_factory.mktemp("muse_glimmer")
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(CHECKPOINT / file, folder)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        mx.save_safetensors(str(folder / "model.safetensors"), tensors)
        return folder

    return write


@pytest.fixture
def reference() -> Callable[[dict[str, Any]], Any]:
    """Make mlx-lm's model of a config, with random weights."""
    name = "mlx_lm.models.muse_glimmer"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name, reason="mlx-lm is not installed")
        module = importlib.import_module(name)

    def make(config: dict[str, Any]) -> Any:
        mx.random.seed(0)
        return module.Model(module.ModelArgs.from_dict(config))

    return make


@pytest.fixture
def converted(reference, raw_config, tensors) -> Any:
    """mlx-lm's model with the trained weights."""
    model = reference(raw_config)
    text = {k: v for k, v in tensors.items() if ".vision_" not in k}
    model.load_weights(list(model.sanitize(text).items()))
    return model
