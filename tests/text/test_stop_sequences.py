from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from neve.text.stop_sequences import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence


def naive(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """What remains of the whole text, and the stop that cut it."""
    found = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def feed(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], StopMatcher]:
    matcher = StopMatcher(stops)
    shown = [matcher.add(piece) for piece in pieces]
    return [*shown, matcher.finish()], matcher


def test_stop_over_pieces():
    """Nothing of a stop that spans pieces comes out, and nothing after it."""
    shown, matcher = feed(["Hello\nUs", "er", ": more", "and more"], ["\nUser:"])

    assert shown == ["Hello", "", "", "", ""]
    assert matcher.stopped
    assert matcher.matched == "\nUser:"


def test_a_false_start_is_shown():
    """What could have begun a stop is given out once it cannot any more."""
    shown, matcher = feed(["a<", "|b"], ["<|end|>"])

    assert shown == ["a", "<|b", ""]
    assert not matcher.stopped


def test_finish_gives_the_held_text():
    """What was still held comes out at the end."""
    shown, _ = feed(["text <|en"], ["<|end|>"])

    assert shown == ["text ", "<|en"]


def test_earliest_match_wins():
    """A complete stop waits while one that began earlier may still be completed."""
    assert feed(["ab", "c"], ["b", "abc"])[0] == ["", "", ""]
    assert feed(["ab", "x"], ["b", "abc"])[0] == ["", "a", ""]
    assert feed(["ab"], ["b", "abc"])[0] == ["", "a"]


def test_the_shortest_of_one_start_is_named():
    """Of two stops that begin at one place the shorter ends the text."""
    _, matcher = feed(["xaab"], ["aab", "aa"])

    assert matcher.matched == "aa"


def test_without_stops_all_passes():
    """With no stop sequence nothing is ever held."""
    assert feed(["a", "b"], [])[0] == ["a", "b", ""]


def test_empty_stop_is_refused():
    """An empty stop sequence would match everywhere."""
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


short = st.text("abc", min_size=1, max_size=4)


@given(
    pieces=st.lists(st.text("abc", max_size=5), max_size=12),
    stops=st.lists(short, max_size=4),
)
@example(pieces=["aa", "ab"], stops=["aab"])
def test_any_split_gives_the_same(pieces: list[str], stops: list[str]):
    """However a text is cut, it ends where a look at the whole text would end it."""
    shown, matcher = feed(pieces, stops)
    rest, stop = naive("".join(pieces), stops)

    assert "".join(shown) == rest
    assert matcher.matched == stop
