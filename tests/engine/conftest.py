"""A loaded tiny model, shared by the tests of a session."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import neve

# tests of lanes and of verification drive one toy model
sys.path.append(str(Path(__file__).parent))

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "qwen3"


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return CHECKPOINT


@pytest.fixture(scope="session")
def goldens() -> dict[str, dict]:
    """Golden prompts by id."""
    prompts = json.loads((CHECKPOINT / "golden.json").read_text())["prompts"]
    return {prompt["id"]: prompt for prompt in prompts}


@pytest.fixture(scope="session")
def model() -> Iterator[neve.Model]:
    with neve.load(CHECKPOINT, paged_cache_memory_mb=64) as model:
        yield model


@pytest.fixture
def load():
    """Load the tiny checkpoint with other settings; closed at the end of the test."""
    models: list[neve.Model] = []

    def make(**settings: Any) -> neve.Model:
        settings.setdefault("paged_cache_memory_mb", 16)
        models.append(neve.load(CHECKPOINT, **settings))
        return models[-1]

    yield make
    for model in models:
        model.close()
