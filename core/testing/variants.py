"""Variants of a checkpoint: other config keys and weights, with the same tokenizer."""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import pytest

Tensors: TypeAlias = dict[str, mx.array]
"""Name -> tensor of a checkpoint."""

KEPT = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
"""Files that a variant copies from its checkpoint, if present."""


def stored_config(checkpoint: Path) -> dict[str, Any]:
    """Return a checkpoint's config.json; the caller may change the mapping."""
    return json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))


def stored_tensors(checkpoint: Path) -> Tensors:
    """Return the weights of a checkpoint with one weight file, in float32."""
    stored: Any = mx.load(str(checkpoint / "model.safetensors"))
    return {name: array.astype(mx.float32) for name, array in stored.items()}


def write_checkpoint(
    folder: Path, source: Path, config: Mapping[str, Any], tensors: Tensors
) -> Path:
    """Write a variant of a checkpoint.

    Args:
        folder: Folder of the variant, which must exist.
        source: Checkpoint with the tokenizer.
        config: Content of config.json.
        tensors: The variant's weights.

    Returns:
        `folder`.
    """
    for name in KEPT:
        if (source / name).exists():
            shutil.copy(source / name, folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    return folder


def mlx_lm_module(model_type: str) -> Any:
    """Return mlx-lm's module for a model type; skip the test where mlx-lm is missing."""
    name = f"mlx_lm.models.{model_type}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(name, reason="mlx-lm is not installed")
        return importlib.import_module(name)


def mlx_lm_model(model_type: str, config: dict[str, Any]) -> Any:
    """Return mlx-lm's model of a config with random weights from a fixed seed."""
    module = mlx_lm_module(model_type)
    mx.random.seed(0)
    return module.Model(module.ModelArgs.from_dict(config))
