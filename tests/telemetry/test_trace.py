from __future__ import annotations

import ast
import io
import json
import re
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.errors import SettingsError
from neve.telemetry.trace import NULL_TRACE, TRACE_EVENTS, Trace

ROOT = Path(__file__).parents[2]
PAIR = re.compile(r' (\w+)=("(?:[^"\\]|\\.)*"|[^" =\\]+)')


def parse(line: str) -> tuple[str, dict[str, str]]:
    """Return a line's event and values, quotes removed; written from the documentation."""
    head = re.fullmatch(r"\[MLX_TRACE\] (\w+)(.*)", line)
    assert head, line
    pairs = PAIR.findall(head[2])
    assert "".join(f" {key}={raw}" for key, raw in pairs) == head[2]
    return head[1], {k: json.loads(raw) if raw[0] == '"' else raw for k, raw in pairs}


def traced_names() -> Iterator[str]:
    """Yield the first argument of every call `…trace.event(…)` in the package."""
    for path in sorted((ROOT / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("trace.event"):
                first = node.args[0]
                yield str(first.value) if isinstance(first, ast.Constant) else "?"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.log"


def test_an_event_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """TE-3: without a file the trace goes to stderr."""
    trace = Trace.from_settings(True, None)
    trace.event("cold_capture_walk", blocks=64, written=60, already=4, stop="end", elapsed_ms=2)
    captured = capsys.readouterr()

    assert trace.enabled
    assert captured.out == ""
    assert captured.err == (
        "[MLX_TRACE] cold_capture_walk blocks=64 written=60 already=4 stop=end elapsed_ms=2\n"
    )


def test_a_value_is_a_word_or_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    """TE-3: what is no single word is JSON text, so that a line can be split."""
    Trace().event(
        "turn_finished",
        turn=3,
        reason="two words",
        empty="",
        sign="a=b",
        break_="a\nb",
        letter="é",
        none=None,
        flag=True,
        ms=1.23456,
        whole=2.0,
        ladder=[16, 64],
        name="a/b-c.d:e",
    )

    assert capsys.readouterr().err == (
        '[MLX_TRACE] turn_finished turn=3 reason="two words" empty="" sign="a=b" '
        'break_="a\\nb" letter="\\u00e9" none=null flag=true ms=1.235 whole=2.0 '
        'ladder="[16, 64]" name=a/b-c.d:e\n'
    )


@given(values=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text(st.characters())))
def test_a_line_is_read_back(tmp_path_factory, values):
    """TE-3: whatever the values, an event is one line and says what was given."""
    path = tmp_path_factory.mktemp("trace") / "trace.log"
    trace = Trace.from_settings(True, str(path))
    trace.event("turn_admitted", **values)
    trace.close()
    (line,) = path.read_text(encoding="ascii").splitlines()

    assert parse(line) == ("turn_admitted", values)


def test_a_file_is_appended_to(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TE-3: the file is its owner's alone; every line is there at once, old ones stay."""
    for boundary in (16, 64):
        trace = Trace.from_settings(True, str(path))
        trace.event("cold_sidecar_install", boundary=boundary)

        assert path.read_text().splitlines()[-1].endswith(f"boundary={boundary}")
        trace.close()

    assert len(path.read_text().splitlines()) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert capsys.readouterr().err == ""


def test_threads_do_not_mix_lines(path: Path) -> None:
    """TE-3: lines of several threads and several traces stay whole."""
    traces = [Trace.from_settings(True, str(path)) for _ in range(2)]

    def write_all(trace: Trace, first: int) -> None:
        for turn in range(first, first + 50):
            trace.event("turn_preempted", turn=turn, mode="recompute")

    threads = [
        threading.Thread(target=write_all, args=(traces[i % 2], 50 * i)) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for trace in traces:
        trace.close()
    turns = [int(parse(line)[1]["turn"]) for line in path.read_text().splitlines()]

    assert sorted(turns) == list(range(200))


def test_a_trace_that_is_off_writes_nothing(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TE-3: the file alone turns nothing on, and is not made."""
    trace = Trace.from_settings(False, str(path))
    trace.event("turn_admitted", turn=1)
    trace.close()

    assert trace is NULL_TRACE
    assert not trace.enabled
    assert not path.exists()
    assert capsys.readouterr() == ("", "")


def test_an_unknown_event_is_a_fault() -> None:
    """TE-3: a name that is not listed raises, and the list is in the sentence."""
    with pytest.raises(ValueError, match=r"'turn_begun'.*turn_admitted"):
        Trace().event("turn_begun")


def test_every_traced_event_is_listed() -> None:
    """TE-3: no call in the package names another event."""
    assert set(traced_names()) <= TRACE_EVENTS


def test_the_page_names_every_event(documented) -> None:
    """TE-3: docs/telemetry.md lists the events."""
    assert {row[0][0] for row in documented("Trace")} == TRACE_EVENTS


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    """TE-3: whoever names a file wants it: a wrong path is an error at load."""
    missing = tmp_path / "missing" / "trace.log"
    with pytest.raises(SettingsError, match=r"inference_trace_file: .*trace\.log"):
        Trace.from_settings(True, str(missing))


def test_a_failed_write_is_logged_once_and_counted(path: Path, logged: list[Any]) -> None:
    """TE-3: a trace that cannot be written costs lines, never a turn."""
    path.touch()
    with path.open() as read_only:
        trace = Trace(read_only.fileno())
        for turn in range(3):
            trace.event("turn_admitted", turn=turn)

    assert trace.failures == 3
    assert [event["event"] for event in logged] == ["telemetry.trace.failed"]


def test_a_closed_stderr_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """TE-3: an application may close the stderr that it put in place."""
    trace, closed = Trace(), io.StringIO()
    closed.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", closed)
        trace.event("turn_admitted", turn=1)

    assert trace.failures == 1


def test_a_closed_trace_takes_no_more(path: Path) -> None:
    """TE-3: an event after the end counts as a failure; closing twice is harmless."""
    trace = Trace.from_settings(True, str(path))
    trace.close()
    trace.close()
    trace.event("turn_admitted", turn=1)

    assert trace.failures == 1
    assert path.read_text() == ""
