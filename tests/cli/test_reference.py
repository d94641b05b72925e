"""docs/cli.md is what the program says."""

from __future__ import annotations

from pathlib import Path

from neve.cli.reference import COMMAND, reference

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_page_is_up_to_date():
    """UX-2: the page of the command line has the program's own help texts."""
    assert PAGE.read_text(encoding="utf-8") == reference(), f"write it anew: {COMMAND}"
