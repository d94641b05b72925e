"""The checkpoints that the gates look at: a tiny one always, a user's if one is named.

Everything is computed in float32, where two paths differ by far less than any margin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import neve

TINY = Path(__file__).parents[2] / "checkpoints" / "qwen3"
DENSE = ["qwen3"]
RECURRENT = ["lfm2", "lfm2_moe", "qwen3_5", "qwen3_5_moe", "nemotron_h"]
WINDOWED = ["muse_glimmer", "gemma4", "gemma4_moe"]
PERSISTENT = [*DENSE, *RECURRENT, *WINDOWED]
VARIABLE = "MLX_TEST_MODEL_PATH"


def users_checkpoint() -> Path:
    path = os.environ.get(VARIABLE, "").strip()
    if not path:
        pytest.skip(f"{VARIABLE} names no checkpoint")
    if not Path(path).is_dir():
        pytest.fail(f"{VARIABLE} must be a checkpoint folder, got {path}", pytrace=False)
    return Path(path)


@pytest.fixture(scope="module", params=["tiny", "user"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    """Either checkpoint."""
    return TINY if request.param == "tiny" else users_checkpoint()


@pytest.fixture(scope="module", params=[*PERSISTENT, "user"])
def certified(request: pytest.FixtureRequest) -> Path:
    """A checkpoint of a family that keeps prefixes on disk."""
    if request.param != "user":
        return TINY.parent / request.param
    path = users_checkpoint()
    with neve.load(path, dtype="float32", paged_cache_memory_mb=64) as model:
        if not model.info.family.cold_restore_eligibility(model.info.config).eligible:
            pytest.skip("the family keeps no prefix on disk")
    return path


@pytest.fixture(scope="module")
def load(checkpoint: Path) -> Iterator[Callable[..., neve.Model]]:
    """Load the checkpoint with some settings; closed at the end of the module."""
    models: list[neve.Model] = []

    def make(**settings: Any) -> neve.Model:
        settings |= {"paged_cache_memory_mb": 2048, "paged_cache_initial_memory_mb": 64}
        models.append(neve.load(checkpoint, dtype="float32", **settings))
        return models[-1]

    yield make
    for model in models:
        model.close()
