"""The tiny Nemotron-H checkpoint, and variants of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import pytest

CHECKPOINT = Path(__file__).parents[3] / "checkpoints" / "nemotron_h"

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
def write_variant(
    tmp_path_factory: pytest.TempPathFactory, raw_config: dict[str, Any]
) -> WriteVariant:
    """Write a checkpoint with some keys of config.json changed, and other weights."""

    def write(changes: dict[str, Any], tensors: Tensors) -> Path:
        folder = tmp_path_factory.mktemp("nemotron_h")
        for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(CHECKPOINT / file, folder)
        config = json.dumps(raw_config | changes)
        (folder / "config.json").write_text(config, encoding="utf-8")
        mx.save_safetensors(str(folder / "model.safetensors"), tensors)
        return folder

    return write
