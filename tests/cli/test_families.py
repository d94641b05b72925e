"""`neve families`."""

from __future__ import annotations

import json
import re

import pytest

from neve.cli import families
from neve.cli.plugins import PluginRow

GOOD = PluginRow("good", "1.2", "neve-good", ("good", "good_moe"), "no: [not] tried")
BROKEN = PluginRow("bad", fault="importing bad raised ImportError: x")


@pytest.fixture
def installed(monkeypatch):
    def install(*rows):
        monkeypatch.setattr(families, "plugin_rows", lambda: list(rows))

    return install


def test_table(run, installed):
    """FW-3: each family has one line, also in a pipe; all well is exit code 0."""
    installed(GOOD)
    done = run("families")
    _, line = done.stdout.splitlines()

    assert done.exit_code == 0
    assert re.split(r"  +", line.strip()) == [
        "good",
        "1.2",
        "neve-good",
        "good, good_moe",
        "no: [not] tried",
    ]


def test_broken_plugin(run, installed):
    """FW-3: a broken plugin is shown with its reason, and the exit code is 1."""
    installed(GOOD, BROKEN)
    done = run("families")

    assert done.exit_code == 1
    assert "good_moe" in done.stdout
    assert done.stdout.endswith("broken: bad: importing bad raised ImportError: x\n")


def test_no_plugin(run, installed):
    """FW-3: without a plugin there is a sentence that says how to get one."""
    installed()
    done = run("families")

    assert (done.exit_code, "pip install" in done.stdout) == (0, True)


def test_json(run, installed):
    """FW-3: --json has all rows, and the same exit code."""
    installed(GOOD, BROKEN)
    done = run("families", "--json")
    good, bad = json.loads(done.stdout)["families"]

    assert done.exit_code == 1
    assert (good["model_types"], good["fault"]) == (["good", "good_moe"], None)
    assert bad["fault"] == BROKEN.fault


def test_installed_families(run):
    """FW-3: what is really installed works, and nothing but the table is written."""
    done = run("families")

    assert (done.exit_code, done.stderr) == (0, "")
    assert "neve-qwen3" in done.stdout
