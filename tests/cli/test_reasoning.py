"""Telling reasoning from answer while it streams."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.cli.reasoning import ReasoningStream

MARKS = ("<think>", "</think>")


def split(pieces, *, marks=MARKS, inside=False):
    """Return the stream's parts, neighbours of one kind joined."""
    stream = ReasoningStream(marks, inside=inside)
    parts = [part for piece in pieces for part in stream.add(piece)] + stream.finish()
    return [
        ("".join(text for text, _ in group), kind)
        for kind, group in groupby(parts, key=lambda part: part[1])
    ]


@pytest.mark.parametrize(
    ("text", "inside", "parts"),
    [
        ("plain", False, [("plain", False)]),
        ("<think>a</think>b", False, [("<think>a</think>", True), ("b", False)]),
        ("a</think>b", True, [("a</think>", True), ("b", False)]),
        ("<think>a", False, [("<think>a", True)]),
        ("1 <think 2", False, [("1 <think 2", False)]),
        ("x<think>a</think>", False, [("x", False), ("<think>a</think>", True)]),
        ("", False, []),
    ],
)
def test_parts(text, inside, parts):
    """UX-4: a reasoning part is known by its marks, which belong to it."""
    assert split([text], inside=inside) == parts


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "<", "/", "a", "b c"])),
    st.lists(st.integers(0, 60)),
    st.booleans(),
)
def test_cuts_do_not_matter(words, cuts, inside):
    """UX-4: parts depend on the text alone, not on how it was cut into pieces."""
    text = "".join(words)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(bounds)]

    assert split(pieces, inside=inside) == split([text], inside=inside)
    assert "".join(part for part, _ in split(pieces, inside=inside)) == text


def test_family_without_marks():
    """UX-4: without marks all is answer, at once."""
    assert ReasoningStream(None).add("<think>") == [("<think>", False)]
