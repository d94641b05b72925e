"""Builders for telemetry tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from neve.telemetry.turn_log import TurnRecord

_PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"


@pytest.fixture(scope="session")
def make_record() -> Callable[..., TurnRecord]:
    """Return a builder of records: a turn that went well, with changes."""
    usual = TurnRecord(
        turn=7,
        model="tiny",
        prompt_tokens=100,
        completion_tokens=20,
        cached_tokens=64,
        restored_tokens=32,
        miss=None,
        finish_reason="stop",
        queue_ms=1.0,
        ttft_ms=12.5,
        total_ms=80.0,
        preemptions=0,
    )

    def make(**changes: Any) -> TurnRecord:
        return attrs.evolve(usual, **changes)

    return make


@pytest.fixture(scope="session")
def documented() -> Callable[[str], list[list[list[str]]]]:
    """Return a reader of docs/telemetry.md: the table rows under a heading.

    A row is its cells, a cell the list of its words in backquotes; the first has some.
    """

    def read(heading: str) -> list[list[list[str]]]:
        text = _PAGE.read_text(encoding="utf-8").partition(f"# {heading}\n")[2]
        section = re.split(r"^#+ ", text, flags=re.MULTILINE)[0]
        rows = [line.split("|")[1:-1] for line in section.split("\n") if line.startswith("|")]
        cells = [[re.findall(r"`(\w+)`", cell) for cell in row] for row in rows]
        return [row for row in cells if row[0]]

    return read
