"""The tiny Qwen3 checkpoint, and variants of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from neve.testing import variants
from neve.testing.variants import Tensors

CHECKPOINT = Path(__file__).parents[3] / "checkpoints" / "qwen3"

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
def write_variant(tmp_path: Path, raw_config: dict[str, Any]) -> WriteVariant:
    """Write a checkpoint with some keys of config.json changed, and other weights."""

    def write(changes: dict[str, Any], tensors: Tensors) -> Path:
        return variants.write_checkpoint(tmp_path, CHECKPOINT, raw_config | changes, tensors)

    return write
