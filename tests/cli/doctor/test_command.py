"""`neve doctor`."""

from __future__ import annotations

import json

import pytest

from neve.cli.doctor import command as doctor
from neve.cli.doctor.checks import Finding

pytestmark = pytest.mark.mlx

GOOD = Finding("good", "ok", "[fine]")
SLOW = Finding("slow", "warning", "works", "make it faster")
BROKEN = Finding("bad", "broken", "gone", "bring it back")


@pytest.fixture
def found(monkeypatch):
    def set_findings(*findings):
        monkeypatch.setattr(doctor, "all_findings", lambda: iter(findings))

    return set_findings


def test_report(run, found):
    """UX-2: a line a finding, and under each problem what to do."""
    found(GOOD, SLOW)
    done = run("doctor")

    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "ok      good: [fine]",
        "warning slow: works",
        "        what to do: make it faster",
    ]


def test_exit_code(run, found):
    """UX-2: only what is broken makes the exit code 1."""
    found(GOOD, BROKEN)

    assert run("doctor").exit_code == 1


def test_json(run, found):
    """UX-2: --json has every finding, and the same exit code."""
    found(GOOD, BROKEN)
    done = run("doctor", "--json")

    assert done.exit_code == 1
    assert [f["status"] for f in json.loads(done.stdout)["findings"]] == ["ok", "broken"]
    assert json.loads(done.stdout)["findings"][1]["advice"] == "bring it back"


def test_checkpoint(run, found, checkpoint):
    """UX-2: what a checkpoint holds stands behind the installation's findings."""
    found(GOOD)
    done = run("doctor", checkpoint)

    lines = done.stdout.splitlines()

    assert done.exit_code == 0
    assert lines[0] == "ok      good: [fine]"
    assert lines[1].startswith("ok      checkpoint: qwen3 by qwen3 0.1.0, 6 layers, ")
    assert "persistence: " in lines[-1]


def test_no_checkpoint(run, found, tmp_path):
    """UX-2: a checkpoint that is not there is broken, and the exit code is 1."""
    found(GOOD)
    done = run("doctor", str(tmp_path), "--json")

    assert done.exit_code == 1
    assert [f["name"] for f in json.loads(done.stdout)["findings"]] == ["good", "checkpoint"]
