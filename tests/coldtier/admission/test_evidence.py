"""Evidence of passed restart-parity gates."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.coldtier.admission.evidence import (
    MAX_EVIDENCE_BYTES,
    Evidence,
    Figures,
    evidence_dir,
    evidence_path,
    read_evidence,
    verify,
    write_evidence,
)
from neve.errors import EvidenceError

FIGURES = Figures(
    prompt_tokens=2048,
    restored_tokens=2032,
    hits=127,
    corruptions=0,
    installs=0,
    answer_tokens=64,
)
EVIDENCE = Evidence(
    family="llama",
    distribution="neve-llama",
    plugin_version="0.1.0",
    state_version=1,
    model_type="llama",
    fingerprint="ab" * 32,
    neve_version="0.1.0",
    date="2026-01-31T12:00:00+00:00",
    figures=FIGURES,
)
INSTALLED: dict[str, Any] = {
    "family": "llama",
    "distribution": "neve-llama",
    "plugin_version": "0.1.0",
    "state_version": 1,
    "model_type": "llama",
}
BAD_NAMES = [
    "",
    ".",
    "..",
    ".hidden",
    "a/b",
    "../a",
    "a\\b",
    "a b",
    "a\n",
    "é",
    "a" * 65,
    "a\0",
]

counts = st.integers(0, 2**63)
evidences = st.builds(
    Evidence,
    family=st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", fullmatch=True),
    distribution=st.text(max_size=20),
    plugin_version=st.text(max_size=20),
    state_version=counts,
    model_type=st.text(max_size=20),
    fingerprint=st.binary(min_size=32, max_size=32).map(bytes.hex),
    neve_version=st.text(max_size=20),
    date=st.dates().map(lambda date: date.isoformat()),
    figures=st.builds(
        Figures,
        prompt_tokens=counts,
        restored_tokens=counts,
        hits=counts,
        corruptions=counts,
        installs=counts,
        answer_tokens=counts,
    ),
)


def _content(**changes: object) -> dict[str, Any]:
    return {"format": "neve-evidence-v1", **attrs.asdict(EVIDENCE), **changes}


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(evidences)
def test_evidence_survives_its_file(tmp_path: Path, evidence: Evidence) -> None:
    """FW-5: what was written is what is read."""
    path = write_evidence(tmp_path, evidence)

    assert path == evidence_path(tmp_path, evidence.family)
    assert read_evidence(path) == evidence


def test_a_new_run_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    """FW-5: one file a family, private, and nothing beside it."""
    directory = tmp_path / "neve" / "evidence"
    write_evidence(directory, EVIDENCE)
    newer = attrs.evolve(EVIDENCE, plugin_version="0.2.0")
    path = write_evidence(directory, newer)

    assert read_evidence(path) == newer
    assert list(directory.iterdir()) == [directory / "llama.json"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_leaves_the_old_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FW-5: a full disk leaves neither half a file nor a temporary one."""
    path = write_evidence(tmp_path, EVIDENCE)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(EvidenceError, match=r"llama\.json: cannot be written: .*No space"):
        write_evidence(tmp_path, attrs.evolve(EVIDENCE, plugin_version="0.2.0"))
    assert list(tmp_path.iterdir()) == [path]
    assert read_evidence(path) == EVIDENCE


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_family_whose_name_is_no_file_name(tmp_path: Path, name: str) -> None:
    """FW-5: a family's name never leads out of the folder."""
    with pytest.raises(EvidenceError, match="cannot name evidence"):
        evidence_path(tmp_path, name)
    with pytest.raises(ValueError, match="family"):
        attrs.evolve(EVIDENCE, family=name)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b"[" * 60_000, "is not JSON"),
        (b"[]", "the format is not 'neve-evidence-v1'"),
        (_content(format="neve-evidence-v2"), "the format is not"),
        (attrs.asdict(EVIDENCE), "the format is not"),
        (_content(sate_version=1), "sate_version: unknown key; did you mean state_version"),
        (_content(state_version=True), "state_version: must be an integer, got True"),
        (_content(state_version=-1), "state_version: must be >= 0"),
        (_content(plugin_version=1), "plugin_version: must be a string"),
        (_content(family="../llama"), "family: must match"),
        (_content(fingerprint="AB" * 32), "fingerprint: must match"),
        (_content(date="yesterday"), "date must be an ISO date, got 'yesterday'"),
        (_content(figures={}), r"figures\.prompt_tokens: required key is missing"),
        (
            _content(figures={**attrs.asdict(FIGURES), "hits": 1.0}),
            r"figures\.hits: must be an integer",
        ),
        (
            _content(figures={**attrs.asdict(FIGURES), "hit": 1}),
            "figures: hit: unknown key; did you mean hits",
        ),
    ],
)
def test_what_is_not_exactly_evidence(tmp_path: Path, content: Any, says: str) -> None:
    """FW-5: a file that was edited or is of another kind is refused, and says why."""
    path = tmp_path / "llama.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())

    with pytest.raises(EvidenceError, match=says) as caught:
        read_evidence(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_of_evidence(tmp_path: Path) -> None:
    """FW-5: a missing, oversized or irregular file is an error, and a pipe no wait."""
    large, pipe = tmp_path / "large.json", tmp_path / "pipe.json"
    large.write_bytes(b" " * (MAX_EVIDENCE_BYTES + 1))
    os.mkfifo(pipe)

    with pytest.raises(EvidenceError, match="exceeds"):
        read_evidence(large)
    for path in (pipe, tmp_path, tmp_path / "none.json"):
        with pytest.raises(EvidenceError, match="no such file"):
            read_evidence(path)


def test_evidence_holds_for_the_plugin_that_earned_it() -> None:
    """FW-5: the same plugin on the same model type is admitted."""
    verdict = verify(EVIDENCE, **INSTALLED)

    assert verdict.valid
    assert verdict.reason == (
        "neve-llama 0.1.0 passed the restart-parity gate on 2026-01-31T12:00:00+00:00"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"family": "lama"}, "family 'llama' is not 'lama'"),
        ({"distribution": "llama"}, "distribution 'neve-llama' is not 'llama'"),
        ({"plugin_version": "0.1.1"}, "plugin version '0.1.0' is not '0.1.1'"),
        ({"state_version": 2}, "state version 1 is not 2"),
        ({"model_type": "llama4"}, "model type 'llama' is not 'llama4'"),
        (
            {"plugin_version": "1", "state_version": 2},
            "plugin version '0.1.0' is not '1'; state version 1 is not 2",
        ),
    ],
)
def test_another_plugin_needs_evidence_of_its_own(changes: dict[str, Any], says: str) -> None:
    """FW-5: any upgrade voids the evidence, and all differences are named."""
    verdict = verify(EVIDENCE, **{**INSTALLED, **changes})

    assert not verdict.valid
    assert verdict.reason == f"the evidence of {EVIDENCE.date}: {says}"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"corruptions": 1}, "1 objects were rejected as corrupt"),
        ({"hits": 0}, "the figures show no hits"),
        ({"restored_tokens": 0}, "the figures show no restored tokens"),
        ({"answer_tokens": 0}, "no answer was compared"),
    ],
)
def test_a_gate_that_showed_nothing_is_no_evidence(changes: dict[str, int], says: str) -> None:
    """FW-5: equal answers prove nothing unless something was restored, and all of it sound."""
    evidence = attrs.evolve(EVIDENCE, figures=attrs.evolve(FIGURES, **changes))
    verdict = verify(evidence, **INSTALLED)

    assert not verdict.valid
    assert says in verdict.reason


@pytest.mark.parametrize(
    ("platform", "configured", "expected"),
    [
        ("linux", None, ".config"),
        ("linux", "/etc/xdg", "/etc/xdg"),
        ("linux", "relative", ".config"),
        ("darwin", "/etc/xdg", "Library/Application Support"),
    ],
)
def test_the_default_folder(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    platform: str,
    configured: str | None,
    expected: str,
) -> None:
    """FW-5: evidence lies where the platform keeps configuration."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    if configured is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", configured)

    assert evidence_dir() == tmp_path / expected / "neve" / "evidence"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """FW-5: a missing home folder is a typed error, not one of the library's."""

    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)

    with pytest.raises(EvidenceError, match="no folder for evidence"):
        evidence_dir()
