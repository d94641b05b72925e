"""Llama passes the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from neve.testing.suite import FamilySuite


@pytest.fixture(scope="session")
def neve_family(tiny_llama: Path) -> tuple[str, Path]:
    return "llama", tiny_llama


class TestLlama(FamilySuite):
    """All clauses."""
