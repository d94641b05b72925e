"""FA-7, FW-8: Nemotron-H keeps what every family promises, tested alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.testing.suite import FamilySuite

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"


@pytest.fixture(scope="session")
def neve_family() -> tuple[str, Path]:
    return "nemotron_h", CHECKPOINTS / "nemotron_h"


class TestNemotronH(FamilySuite):
    """All of it."""
