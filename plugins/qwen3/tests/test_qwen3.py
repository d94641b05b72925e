"""FA-1, FW-8: Qwen3 keeps what every family promises, tested alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.testing.suite import FamilySuite

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"


@pytest.fixture(scope="session")
def neve_family() -> tuple[str, Path]:
    return "qwen3", CHECKPOINTS / "qwen3"


class TestQwen3(FamilySuite):
    """All of it."""
