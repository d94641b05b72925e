from __future__ import annotations

import pytest

from neve.text.reasoning import split_reasoning

MARKS = ("<think>", "</think>")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\n3 + 5\n</think>\n\nIt is 8.", ("3 + 5", "It is 8.")),
        ("\n<think>3 + 5</think>8", ("3 + 5", "8")),
        ("3 + 5\n</think>\n\nIt is 8.", ("3 + 5", "It is 8.")),
        ("<think>\n\n</think>\n\nIt is 8.", ("", "It is 8.")),
        ("<think>still at it", ("still at it", "")),
        (" It is 8. ", (None, " It is 8. ")),
        ("a <think> in between", (None, "a <think> in between")),
        ("", (None, "")),
    ],
)
def test_split(text: str, expected: tuple[str | None, str]):
    """UX-4: a leading reasoning part is told from the answer, opened here or in the prompt."""
    assert split_reasoning(text, MARKS) == expected


def test_no_marks():
    """UX-4: a family without reasoning marks has only answers."""
    assert split_reasoning("<think>a</think>b", None) == (None, "<think>a</think>b")
