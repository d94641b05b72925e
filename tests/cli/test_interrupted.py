"""Ctrl-C at any moment of any command: one line, exit code 130, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from .processes import DEMO, LIGHT, LOADING, start

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX"),
]

MOMENTS = [(i + 0.5) / 10 for i in range(10)]
SOAK = bool(os.environ.get("NEVE_SOAK"))
LIGHT_MOMENTS = MOMENTS if SOAK else [0.1, 0.8]
DEMO_MOMENTS = MOMENTS if SOAK else [0.05, 0.8]  # the demo's folder and processes come last
FAULTS = ("Traceback", "Exception ignored", "terminate called", "not empty", "Aborted")


def run_whole(arguments, folders) -> float:
    """Return how many seconds a command takes if nobody interrupts it."""
    began = time.perf_counter()
    process = start(arguments, folders)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    return time.perf_counter() - began


def run_interrupted(arguments, folders, delay_s: float) -> int:
    """Return the exit code of a command that is interrupted, and check what it leaves."""
    process = start(arguments, folders)
    time.sleep(max(delay_s, 0.1))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    text = errors.decode()

    assert process.returncode in (0, 130), (delay_s, text)
    assert not any(fault in text for fault in FAULTS), (delay_s, text)
    assert text.count("interrupted\n") == (process.returncode == 130), (delay_s, text)
    assert not text or text.endswith("\n")
    assert list(folders.temporary.iterdir()) == [], delay_s
    if process.returncode == 130:
        assert not (folders.root / "bundle.tar").exists()
    return process.returncode


def sweep(arguments, fresh, moments) -> list[int]:
    whole_s = run_whole(arguments, fresh())
    return [run_interrupted(arguments, fresh(), whole_s * moment) for moment in moments]


@pytest.mark.parametrize("name", LOADING)
def test_commands_that_load_a_model(name, fresh):
    """UX-2: while it imports, loads, computes, writes and closes."""
    codes = sweep(LOADING[name], fresh, MOMENTS)

    assert codes[0] == 130
    assert codes.count(130) >= len(MOMENTS) // 2


@pytest.mark.parametrize("name", LIGHT)
def test_commands_without_a_model(name, fresh):
    """UX-2: the whole of these is mostly imports."""
    codes = sweep(LIGHT[name], fresh, LIGHT_MOMENTS)

    assert codes[0] == 130


def test_demo(fresh):
    """UX-2: its folder goes, and the processes that it has started."""
    codes = sweep(DEMO, fresh, DEMO_MOMENTS)

    assert codes[0] == 130
    assert codes.count(130) >= len(DEMO_MOMENTS) // 2


def test_ignored_interrupts_stay_ignored(fresh):
    """UX-2: whoever starts the program in the background has decided that."""
    ignore = "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    program = "sys.argv[0] = 'neve'; from neve.cli.main import main; "
    interrupt = "signal.raise_signal(signal.SIGINT); main()"
    done = subprocess.run(
        [sys.executable, "-c", ignore + program + interrupt, "--version"],
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, b"")
