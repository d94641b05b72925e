"""The tiny Qwen3.5 checkpoints, variants of them, and mlx-lm's model as a reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from neve.testing import variants
from neve.testing.variants import Tensors

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"

WriteVariant: TypeAlias = Callable[[dict[str, Any], Tensors], Path]


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3_5_moe"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    """A trained tiny checkpoint: the dense one, then the one with experts."""
    return CHECKPOINTS / request.param


@pytest.fixture
def raw_config(checkpoint: Path) -> dict[str, Any]:
    """Its config.json."""
    return variants.stored_config(checkpoint)


@pytest.fixture
def tensors(checkpoint: Path) -> Tensors:
    """Its weights, in float32."""
    return variants.stored_tensors(checkpoint)


@pytest.fixture
def write_variant(tmp_path: Path, checkpoint: Path) -> WriteVariant:
    """Write a checkpoint with another config.json and other weights."""

    def write(config: dict[str, Any], tensors: Tensors) -> Path:
        return variants.write_checkpoint(tmp_path, checkpoint, config, tensors)

    return write


@pytest.fixture
def reference(raw_config: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """Make mlx-lm's model of a config."""
    variants.mlx_lm_module(raw_config["model_type"])

    def make(config: dict[str, Any]) -> Any:
        # it changes what it is given
        text = config["text_config"] | {
            "rope_parameters": dict(config["text_config"]["rope_parameters"])
        }
        own = {**config, "text_config": text}
        return variants.mlx_lm_model(raw_config["model_type"], own)

    return make


@pytest.fixture
def converted(reference, raw_config, tensors) -> Any:
    """mlx-lm's model with the trained weights, which it converts to MLX's layout."""
    model = reference(raw_config)
    text = {k: v for k, v in tensors.items() if ".visual." not in k}
    model.load_weights(list(model.sanitize(text).items()))
    return model
