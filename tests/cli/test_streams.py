"""Standard streams that are closed, full or broken: one rule for all commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from .processes import DEMO, LIGHT, LOADING, Folders, start

pytestmark = [
    pytest.mark.mlx,
    pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux"),
]

ALL = {**LIGHT, **LOADING, "demo": DEMO}
NEVER_WRITTEN = {
    ">&-": "Error: stdout cannot be written: it is closed\n",
    ">/dev/full": "Error: stdout cannot be written: No space left on device\n",
}
FAULTS = ("Traceback", "Exception ignored", "terminate called")


def run(arguments, folders: Folders, redirection="", **options) -> tuple[int, str, str]:
    process = start(arguments, folders, redirection, **options)
    output, errors = process.communicate(timeout=300)
    return process.returncode, (output or b"").decode(), (errors or b"").decode()


def check_remarks(errors: str, sentence: str) -> None:
    """A command's remarks may stand before the sentence, and no trace of a fault anywhere."""
    assert not any(fault in errors for fault in FAULTS), errors
    assert errors.endswith(sentence)
    assert errors.count("Error") == sentence.count("Error")


@pytest.mark.parametrize("name", ALL)
def test_stdout_that_takes_nothing(name, fresh):
    """UX-2: what cannot be written was not done, and a sentence says why."""
    redirections = NEVER_WRITTEN if name in LIGHT else [">/dev/full"]
    for redirection in redirections:
        code, _, errors = run(ALL[name], fresh(), redirection)

        assert code == 1, (redirection, errors)
        check_remarks(errors, NEVER_WRITTEN[redirection])


@pytest.mark.parametrize("name", [*LIGHT, "generate", "chat", "bench"])
def test_stdout_whose_reader_is_gone(name, fresh):
    """UX-2: nobody is told, and the exit code is that of every program in a pipe."""
    read, write = os.pipe()
    os.close(read)
    code, _, errors = run(ALL[name], fresh(), stdout=write)
    os.close(write)

    assert code == 141, errors
    check_remarks(errors, "")


@pytest.mark.parametrize("name", [*LIGHT, "generate"])
def test_stderr_that_takes_nothing(name, fresh):
    """UX-2: remarks are lost, and nothing else is."""
    whole = run(ALL[name], fresh())
    for redirection in ("2>&-", "2>/dev/full"):
        code, output, _ = run(ALL[name], fresh(), redirection)

        assert (code, whole[0]) == (0, 0)
        assert len(output) > 0
        assert without_numbers(output) == without_numbers(whole[1])


def without_numbers(text: str) -> str:
    """Return a text whose figures, and names of folders, are those of any run."""
    return re.sub(r"\d+(\.\d+)?", "#", text)


def test_closed_stdin_is_empty(fresh):
    """UX-2: a prompt that cannot be read is none."""
    code, output, errors = run(LOADING["generate"][:2], fresh(), "<&-")

    assert (code, output) == (2, "")
    assert errors == "Error: the prompt is empty: at least one token is needed\n"


def test_all_three_closed(fresh):
    """UX-2: no file that is opened later takes a stream's place."""
    folders = fresh()
    arguments = ("cache", "export", "bundle.tar", "--model-prefix", "a1")
    process = start(arguments, folders, "<&- >&- 2>&-", stdout=subprocess.DEVNULL)
    process.communicate(timeout=60)

    assert process.returncode == 1
    assert (folders.root / "bundle.tar").read_bytes() == (
        folders.root / "objects.tar"
    ).read_bytes()
