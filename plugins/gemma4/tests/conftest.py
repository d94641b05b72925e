"""The tiny Gemma 4 checkpoints, variants of them, and mlx-lm's model as a reference."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from neve.testing import variants
from neve.testing.variants import Tensors

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"
NAMES = ("gemma4", "gemma4_moe")

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
        raw = variants.stored_config(CHECKPOINTS / name)
        raw["text_config"] |= changes
        return raw

    return read


@pytest.fixture(scope="session")
def tensors() -> Callable[[str], Tensors]:
    """Read the weights of a checkpoint, in float32."""
    return lambda name: variants.stored_tensors(CHECKPOINTS / name)


@pytest.fixture
def write_variant(tmp_path_factory: pytest.TempPathFactory) -> WriteVariant:
    """Write a checkpoint with another config.json and other weights."""

    def write(config: dict[str, Any], tensors: Tensors) -> Path:
        folder = tmp_path_factory.mktemp("variant")
        return variants.write_checkpoint(folder, CHECKPOINTS / "gemma4", config, tensors)

    return write


@pytest.fixture
def reference() -> Callable[[dict[str, Any]], Any]:
    """Make mlx-lm's model of a config, with random weights."""
    variants.mlx_lm_module("gemma4")

    def make(config: dict[str, Any]) -> Any:
        text = json.loads(json.dumps(config["text_config"]))  # it changes what it is given
        # it looks for the vocabulary outside
        outer = config | {"text_config": text, "vocab_size": text["vocab_size"]}
        return variants.mlx_lm_model("gemma4", outer)

    return make
