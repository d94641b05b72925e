"""The tiny Gemma 4 checkpoints, variants of them, and mlx-lm's model as a reference."""

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
NAMES = ("gemma4", "gemma4_moe")

Tensors: TypeAlias = dict[str, mx.array]
WriteVariant: TypeAlias = Callable[[dict[str, Any], Tensors], Path]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """The folder of a trained tiny checkpoint: the dense one, then the one with experts."""
    return request.param


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[str], Path]:
    """Return the folder of a checkpoint."""
    return lambda name: CHECKPOINTS / name


@pytest.fixture(scope="session")
def raw_config() -> Callable[..., dict[str, Any]]:
    """Read the config.json of a checkpoint, with some keys of its text model changed."""

    def read(name: str, **changes: Any) -> dict[str, Any]:
        raw = json.loads((CHECKPOINTS / name / "config.json").read_text(encoding="utf-8"))
        raw["text_config"] |= changes
        return raw

    return read


@pytest.fixture(scope="session")
def tensors() -> Callable[[str], Tensors]:
    """Read the weights of a checkpoint, in float32."""

    def read(name: str) -> Tensors:
        stored: Any = mx.load(str(CHECKPOINTS / name / "model.safetensors"))
        return {name: array.astype(mx.float32) for name, array in stored.items()}

    return read


@pytest.fixture
def write_variant(tmp_path_factory: pytest.TempPathFactory) -> WriteVariant:
    """Write a checkpoint with another config.json and other weights."""

    def write(config: dict[str, Any], tensors: Tensors) -> Path:
        folder = tmp_path_factory.mktemp("variant")
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(CHECKPOINTS / "gemma4" / file, folder)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        mx.save_safetensors(str(folder / "model.safetensors"), tensors)
        return folder

    return write


@pytest.fixture
def reference() -> Callable[[dict[str, Any]], Any]:
    """Make mlx-lm's model of a config, with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("mlx_lm.models.gemma4", reason="mlx-lm is not installed")
        module = importlib.import_module("mlx_lm.models.gemma4")

    def make(config: dict[str, Any]) -> Any:
        mx.random.seed(0)
        text = json.loads(json.dumps(config["text_config"]))  # it changes what it is given
        # it looks for the vocabulary outside
        outer = config | {"text_config": text, "vocab_size": text["vocab_size"]}
        return module.Model(module.ModelArgs.from_dict(outer))

    return make
