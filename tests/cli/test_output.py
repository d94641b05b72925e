"""How results are written."""

from __future__ import annotations

import io
import json

import attrs
import pytest

from neve.cli.output import decode_rate, milliseconds, summary, table, write_json
from neve.engine.completion import CacheReport, Completion, FinishReason, Timings, Usage


def make_completion(num_tokens: int = 11, finish_reason: FinishReason = "stop"):
    return Completion(
        text="",
        tokens=(1,) * num_tokens,
        finish_reason=finish_reason,
        usage=Usage(20, num_tokens, 16),
        cache_report=CacheReport(16, 0, 4, None, 0),
        timings=Timings(0.0, 100.0, 600.0),
    )


def test_summary_is_one_line_of_figures():
    """UX-2: prompt, cached tokens, time to first token and speed."""
    assert summary(make_completion()) == (
        "prompt 20 tokens, 16 of them from memory · first token after 100 ms · "
        "11 tokens at 20.0/s · ended by itself"
    )


def test_few_tokens_have_no_rate():
    """UX-2: a rate needs two tokens, and is shown when there are enough to tell."""
    assert decode_rate(make_completion(1)) is None
    assert decode_rate(make_completion(2)) == 2.0
    assert "7 tokens · cut at the token limit" in summary(make_completion(7, "length"))


@pytest.mark.parametrize(
    ("num_tokens", "max_context", "ending"),
    [
        (11, 4096, "cut at the token limit"),
        (7, 26, "cut where the context is full"),
        (7, 4096, "cut where the cache is full"),
    ],
)
def test_limits_are_told_apart(num_tokens, max_context, ending):
    """UX-2: what was asked for, the model's context, or the cache's memory."""
    completion = make_completion(num_tokens, "length")

    assert summary(completion, max_tokens=11, max_context=max_context).endswith(ending)


def test_memory_and_disk_are_told_apart():
    """UX-2: a prefix may have been found in two places."""
    report = CacheReport(4, 12, 4, None, 0)
    completion = attrs.evolve(make_completion(), cache_report=report)

    assert "prompt 20 tokens, 4 of them from memory, 12 from disk" in summary(completion)


@pytest.mark.parametrize(("value", "text"), [(3.2, "3 ms"), (999, "999 ms"), (1500, "1.5 s")])
def test_durations(value, text):
    """Durations have the unit that people read."""
    assert milliseconds(value) == text


def test_tables_show_text_as_it_stands():
    """A cell with brackets is text, not markup."""
    from rich.console import Console

    out = io.StringIO()
    shown = table("column")
    shown.add_row("[bold]x[/bold] :smile:")
    Console(file=out, markup=False, emoji=False).print(shown)

    assert "[bold]x[/bold] :smile:" in out.getvalue()


def test_json_is_always_json(capsys):
    """What JSON has no number for is null, wherever it stands."""
    write_json({"a": [float("nan"), (1.5, float("-inf"))], "b": {"c": float("inf"), "d": 1}})

    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "a": [None, [1.5, None]],
        "b": {"c": None, "d": 1},
    }
