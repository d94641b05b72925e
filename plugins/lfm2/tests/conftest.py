"""The tiny LFM2 checkpoints, and variants of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import pytest

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"
NAMES = ("lfm2", "lfm2_moe")

Tensors: TypeAlias = dict[str, mx.array]
WriteVariant: TypeAlias = Callable[[str, dict[str, Any], Tensors], Path]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """The model type of a trained tiny checkpoint."""
    return request.param


@pytest.fixture(scope="session")
def checkpoint() -> Callable[[str], Path]:
    """Return the folder of a checkpoint."""
    return lambda name: CHECKPOINTS / name


@pytest.fixture(scope="session")
def raw_config() -> Callable[[str], dict[str, Any]]:
    """Read the config.json of a checkpoint."""

    def read(name: str) -> dict[str, Any]:
        return json.loads((CHECKPOINTS / name / "config.json").read_text(encoding="utf-8"))

    return read


@pytest.fixture(scope="session")
def tensors() -> Callable[[str], Tensors]:
    """Read the weights of a checkpoint, in float32."""

    def read(name: str) -> Tensors:
        stored: Any = mx.load(str(CHECKPOINTS / name / "model.safetensors"))
        return {name: array.astype(mx.float32) for name, array in stored.items()}

    return read


@pytest.fixture
def write_variant(
    tmp_path_factory: pytest.TempPathFactory, raw_config: Callable[[str], dict[str, Any]]
) -> WriteVariant:
    """Write a checkpoint with some keys of config.json changed, and other weights."""

    def write(name: str, changes: dict[str, Any], tensors: Tensors) -> Path:
        folder = tmp_path_factory.mktemp(name)
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(CHECKPOINTS / name / file, folder)
        config = json.dumps(raw_config(name) | changes)
        (folder / "config.json").write_text(config, encoding="utf-8")
        mx.save_safetensors(str(folder / "model.safetensors"), tensors)
        return folder

    return write
