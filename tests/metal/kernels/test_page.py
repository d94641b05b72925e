"""The page on kernels quotes the code as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.mlx

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTES = FENCE.findall((ROOT / "docs" / "kernels.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "quote"), QUOTES)
def test_what_is_quoted_stands_there(file: str, quote: str):
    """Code that the page shows is part of the file that it names."""
    assert quote in (ROOT / file).read_text(encoding="utf-8")
