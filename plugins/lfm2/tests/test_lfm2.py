"""FA-5, FW-8: lfm2 keeps what every family promises, tested alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.testing.suite import FamilySuite

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"


@pytest.fixture(scope="session")
def neve_family() -> tuple[str, Path]:
    return "lfm2", CHECKPOINTS / "lfm2"


class TestLfm2(FamilySuite):
    """All of it."""
