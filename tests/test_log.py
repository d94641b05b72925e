from __future__ import annotations

import ast
import io
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from neve.log import EVENTS, configure, configure_if_unset, get_logger

ROOT = Path(__file__).parents[1]
METHODS = {"debug", "info", "warning", "error", "critical", "exception"}


@pytest.fixture(autouse=True)
def _unconfigured() -> None:
    """Start from structlog's defaults."""
    structlog.reset_defaults()


def logged_names() -> Iterator[str]:
    """Yield the first argument of every logging call in the package, `?` if it is no text."""
    for folder in ("core", "metal"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                    continue
                if node.func.attr in METHODS and "log" in ast.unparse(node.func.value):
                    first = node.args[0] if node.args else None
                    yield str(first.value) if isinstance(first, ast.Constant) else "?"


def test_every_logged_event_is_listed_and_every_listed_one_is_logged() -> None:
    """The list in log.py is the whole list: no other name is used, and none is stale."""
    assert set(logged_names()) == EVENTS


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_an_event_name_is_a_dotted_fact(event: str) -> None:
    """Names read `room.noun.verb`, so that a room's events can be picked out."""
    assert re.fullmatch(r"[a-z]+\.[a-z_]+\.[a-z_]+", event)


def test_a_library_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Unasked, neve writes warnings to stderr, nothing less, and nothing to stdout."""
    configure_if_unset()
    log = get_logger("kvcache")
    log.debug("kvcache.pool.grown")
    log.info("kvcache.pool.grown")
    log.warning("kvcache.growth.refused", group=1)
    captured = capsys.readouterr()

    assert captured.out == ""
    assert "kvcache.growth.refused" in captured.err
    assert "group=1" in captured.err
    assert "room=kvcache" in captured.err
    assert "kvcache.pool.grown" not in captured.err


def test_the_level_can_be_lowered(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line shows more if it is asked to."""
    configure(logging.INFO)
    get_logger("kvcache").info("kvcache.pool.grown")

    assert "kvcache.pool.grown" in capsys.readouterr().err


def test_an_applications_own_configuration_stays() -> None:
    """What the application configured is not touched by loading a model."""
    structlog.configure(processors=[])
    configure_if_unset()

    assert structlog.get_config()["processors"] == []


def test_a_replaced_stderr_may_be_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Configured while stderr is captured, neve logs to the real one afterwards."""
    with monkeypatch.context() as patch, io.StringIO() as replaced:
        patch.setattr(sys, "stderr", replaced)
        configure()
        get_logger("engine").warning("engine.loop.failed")
        assert "engine.loop.failed" in replaced.getvalue()
    get_logger("engine").warning("engine.step.failed")

    assert "engine.step.failed" in capsys.readouterr().err


def test_events_can_be_captured() -> None:
    """Tests see events as values, whatever the level."""
    configure()
    log = get_logger("engine")
    with capture_logs() as events:
        log.warning("engine.step.failed", turn=3)

    assert events == [
        {"event": "engine.step.failed", "room": "engine", "turn": 3, "log_level": "warning"}
    ]
