"""FA-3, FW-8: the model with experts keeps what every family promises, tested alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.testing.suite import FamilySuite

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"


@pytest.fixture(scope="session")
def neve_family() -> tuple[str, Path]:
    return "qwen3_5", CHECKPOINTS / "qwen3_5_moe"


class TestQwen35Moe(FamilySuite):
    """All of it."""
