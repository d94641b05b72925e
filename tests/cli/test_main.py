"""The program: its help, its exit codes, its sentences."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from neve.cli.faults import error_text
from neve.cli.program import program
from neve.errors import (
    CheckpointError,
    NeveError,
    RequestError,
    SettingsError,
    WeightError,
)

COMMANDS = ["bench", "cache", "certify", "chat", "demo", "doctor", "families", "generate"]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_help_names_every_command(run):
    """UX-2: `neve --help` lists the commands, each with a whole sentence."""
    done = run("--help")

    assert done.exit_code == 0
    assert sorted(program.commands) == COMMANDS
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    assert "..." not in done.stdout.partition("Commands:")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_explains_itself(name):
    """UX-2: no option is without a help text."""
    options = [p for p in program.commands[name].params if isinstance(p, click.Option)]

    assert all(option.help for option in options)


def test_module_runs_and_help_needs_no_mlx():
    """UX-2: help is fast, since nothing heavy is imported for it."""
    code = (
        "import runpy, sys\n"
        "sys.argv = ['neve', '--help']\n"
        "try:\n"
        "    runpy.run_module('neve.cli.main', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    heavy = {'mlx.core', 'tokenizers', 'huggingface_hub', 'jinja2'}\n"
        "    sys.exit(end.code or ', '.join(sorted(heavy & set(sys.modules))) or 0)\n"
    )
    done = python("-c", code)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: neve [OPTIONS] COMMAND")


def test_main_is_reached_before_anything_large_is_imported():
    """UX-2: Ctrl-C is answered from `main` on, so whatever comes before has to be short."""
    done = python("-c", "import sys, neve.cli.main; print(*sys.modules)")
    large = {"asyncio", "attr", "cattrs", "click", "logging", "pluggy", "rich", "structlog"}

    assert large.isdisjoint(done.stdout.split())


def test_package_runs():
    """UX-2: `python -m neve` is the program."""
    done, same = python("-m", "neve", "families"), python("-m", "neve.cli.main", "families")

    assert (done.returncode, done.stdout, done.stderr) == (0, same.stdout, "")


def test_version():
    """UX-2: the program says its version."""
    done = python("-m", "neve.cli.main", "--version")

    assert done.returncode == 0
    assert done.stdout.startswith("neve, version ")


def test_unknown_command(run):
    """UX-2: an unknown command is wrong input."""
    done = run("genrate")

    assert done.exit_code == 2
    assert "No such command 'genrate'" in done.stderr


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (SettingsError(["a: unknown"]), 2),
        (RequestError("no such thing", code="x"), 2),
        (CheckpointError("no such file"), 1),
    ],
)
def test_errors_end_with_their_sentence(run, monkeypatch, error, exit_code):
    """UX-2: an error becomes its sentence; the exit code is 2 if the input was wrong."""

    def fail(*_):
        raise error

    monkeypatch.setattr("neve.cli.generate.load_model", fail)
    done = run("generate", "model", "prompt")

    assert (done.exit_code, done.stdout) == (exit_code, "")
    assert done.stderr == f"Error: {error}\n"


def test_several_findings_have_a_line_each(run, monkeypatch):
    """UX-2: nobody searches one long line for the second fault."""

    def fail(*_):
        raise SettingsError(["a: unknown", "b: unknown"])

    monkeypatch.setattr("neve.cli.generate.load_model", fail)
    done = run("generate", "model", "prompt")

    assert done.stderr == "Error: 2 settings are wrong:\n  a: unknown\n  b: unknown\n"


def test_weights_that_do_not_fit_have_a_line_each():
    """UX-2: each kind is counted, and its first ones are named."""
    missing = [f"w{i}" for i in range(12)]
    lines = error_text(WeightError("x", missing=missing, mismatched=["y"])).splitlines()

    assert lines[:3] == [
        "the weights do not fit the model:",
        "the checkpoint lacks: 12",
        "  w0",
    ]
    assert lines[-3:] == ["  and 2 more", "of another shape or type: 1", "  y"]


@pytest.mark.parametrize("flags", [(), ("-v",)])
def test_verbose_says_where_a_cause_arose(run, monkeypatch, flags):
    """UX-2: whoever reports a fault can say its file and line."""

    def fail(*_):
        try:
            {}["key"]
        except KeyError as error:
            raise NeveError("the step failed") from error

    monkeypatch.setattr("neve.cli.generate.load_model", fail)
    done = run("generate", "model", "prompt", *flags)

    assert done.exit_code == 1
    assert ("test_main.py:" in done.stderr) == bool(flags)
    assert done.stderr.endswith("Error: the step failed\n")


def test_missing_back_end_says_what_to_install(run, monkeypatch):
    """UX-2: MLX without a back end is the first thing that goes wrong on Linux."""

    def fail(*_):
        raise ImportError("libmlx.so: cannot open shared object file", name="mlx.core")

    monkeypatch.setattr("neve.cli.generate.load_model", fail)
    done = run("generate", "model", "prompt")

    assert done.exit_code == 1
    assert "pip install 'neve[cpu]'" in done.stderr


def test_foreign_import_errors_are_not_hidden(run, monkeypatch):
    """A fault of ours is not dressed up as one of the installation."""

    def fail(*_):
        raise ImportError("no module named x", name="x")

    monkeypatch.setattr("neve.cli.generate.load_model", fail)

    assert isinstance(run("generate", "model", "prompt").exception, ImportError)


def test_interruption(run, monkeypatch):
    """UX-2: Ctrl-C ends a command with the exit code that shells know."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("neve.cli.generate.load_model", interrupt)

    assert run("generate", "model", "prompt").exit_code == 130


@pytest.mark.mlx
def test_wrong_input_reaches_the_shell_as_a_sentence():
    """UX-2: in a real process too there is one sentence, and no traceback."""
    done = python("-m", "neve.cli.main", "generate", "./nowhere.gguf", "x")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ./nowhere.gguf: no such file or directory")
    assert done.stderr.count("\n") == 1
