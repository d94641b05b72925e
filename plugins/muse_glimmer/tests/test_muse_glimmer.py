"""FA-8, FW-8: muse_glimmer keeps what every family promises, tested alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.testing.suite import FamilySuite

CHECKPOINTS = Path(__file__).parents[3] / "checkpoints"


@pytest.fixture(scope="session")
def neve_family() -> tuple[str, Path]:
    return "muse_glimmer", CHECKPOINTS / "muse_glimmer"


class TestMuseGlimmer(FamilySuite):
    """All of it."""
