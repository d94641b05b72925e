"""The tiny Muse-Glimmer checkpoint, and variants of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from neve.testing import variants
from neve.testing.variants import Tensors

CHECKPOINT = Path(__file__).parents[3] / "checkpoints" / "muse_glimmer"

WriteVariant: TypeAlias = Callable[[dict[str, Any], Tensors], Path]


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """The trained tiny checkpoint."""
    return CHECKPOINT


@pytest.fixture(scope="session")
def raw_config() -> dict[str, Any]:
    """Its config.json."""
    return variants.stored_config(CHECKPOINT)


@pytest.fixture
def tensors() -> Tensors:
    """Its weights, in float32."""
    return variants.stored_tensors(CHECKPOINT)


@pytest.fixture
def write_variant(tmp_path_factory: pytest.TempPathFactory) -> WriteVariant:
    """Write a checkpoint with another config.json and other weights."""

    def write(config: dict[str, Any], tensors: Tensors) -> Path:
        folder = tmp_path_factory.mktemp("muse_glimmer")
        return variants.write_checkpoint(folder, CHECKPOINT, config, tensors)

    return write


@pytest.fixture
def reference() -> Callable[[dict[str, Any]], Any]:
    """Make mlx-lm's model of a config, with random weights."""
    variants.mlx_lm_module("muse_glimmer")
    return partial(variants.mlx_lm_model, "muse_glimmer")


@pytest.fixture
def converted(reference, raw_config, tensors) -> Any:
    """mlx-lm's model with the trained weights."""
    model = reference(raw_config)
    text = {k: v for k, v in tensors.items() if ".vision_" not in k}
    model.load_weights(list(model.sanitize(text).items()))
    return model
