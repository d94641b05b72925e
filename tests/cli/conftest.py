"""Run commands in this process, on the tiny checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

import neve
from neve.cli.program import program

from .processes import Folders

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "qwen3"


@pytest.fixture(scope="session")
def checkpoint() -> str:
    return str(CHECKPOINT)


@pytest.fixture(scope="session")
def model() -> Iterator[neve.Model]:
    with neve.load(CHECKPOINT, paged_cache_memory_mb=64) as model:
        yield model


@pytest.fixture
def run():
    """Run `neve` with arguments and stdin; stdout and stderr are kept apart."""

    def invoke(*arguments: str, stdin: str | bytes | None = None):
        return CliRunner().invoke(program, arguments, input=stdin)

    return invoke


@pytest.fixture
def run_loaded(run, model, monkeypatch):
    """Run a command on the session's model, whatever it names."""

    def invoke(command: str, *arguments: str, stdin: str | bytes | None = None):
        module = program.commands[command].callback.__module__
        monkeypatch.setattr(f"{module}.load_model", lambda *_: nullcontext(model))
        return run(command, *arguments, stdin=stdin)

    return invoke


@pytest.fixture(scope="session")
def filled(tmp_path_factory) -> Folders:
    """A store with objects, to be copied by whoever runs a process on it."""
    folders = Folders(tmp_path_factory.mktemp("filled"))
    folders.fill()
    return folders


@pytest.fixture
def fresh(filled, tmp_path):
    """Return a new copy of those folders at every call."""
    numbers = itertools.count()
    return lambda: filled.copy(tmp_path / str(next(numbers)))
