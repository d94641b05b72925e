"""The tiny LFM2 checkpoints, and variants of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from neve.testing import variants
from neve.testing.variants import Tensors

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"
NAMES = ("lfm2", "lfm2_moe")

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
    return lambda name: variants.stored_config(CHECKPOINTS / name)


@pytest.fixture(scope="session")
def tensors() -> Callable[[str], Tensors]:
    """Read the weights of a checkpoint, in float32."""
    return lambda name: variants.stored_tensors(CHECKPOINTS / name)


@pytest.fixture
def write_variant(
    tmp_path_factory: pytest.TempPathFactory, raw_config: Callable[[str], dict[str, Any]]
) -> WriteVariant:
    """Write a checkpoint with some keys of config.json changed, and other weights."""

    def write(name: str, changes: dict[str, Any], tensors: Tensors) -> Path:
        folder, config = tmp_path_factory.mktemp(name), raw_config(name) | changes
        return variants.write_checkpoint(folder, CHECKPOINTS / name, config, tensors)

    return write
