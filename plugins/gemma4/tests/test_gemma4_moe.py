"""FA-4, FW-8: the model with experts keeps what every family promises, tested alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.testing.suite import FamilySuite

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"


@pytest.fixture(scope="session")
def neve_family() -> tuple[str, Path]:
    return "gemma4", CHECKPOINTS / "gemma4_moe"


class TestGemma4Moe(FamilySuite):
    """All of it."""
