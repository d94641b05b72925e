"""Evidence: the record of a passed restart-parity gate, which admits a family to the tier."""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
from attrs import validators

from ...errors import EvidenceError, SettingsError
from ...files import replace_file
from ...structuring import strict_converter, structure

FORMAT = "neve-evidence-v1"
MAX_EVIDENCE_BYTES = 1 << 16

_FAMILY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")  # the name becomes a file name
_CONVERTER = strict_converter(forbid_extra_keys=True)

_count = validators.ge(0)


def _iso_date(_: object, attribute: attrs.Attribute[Any], value: str) -> None:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"{attribute.name} must be an ISO date, got {value!r}") from None


@attrs.frozen(kw_only=True)
class Figures:
    """Measurements of the gate.

    Attributes:
        prompt_tokens: Tokens of the prompts that were submitted again after the restart.
        restored_tokens: Prompt tokens that were restored from disk.
        hits: Objects that were restored.
        corruptions: Objects that were rejected.
        installs: Sidecars that were installed; 0 for a family without sidecars.
        answer_tokens: Tokens of the answers, each equal to its twin computed without a tier.
    """

    prompt_tokens: int = attrs.field(validator=_count)
    restored_tokens: int = attrs.field(validator=_count)
    hits: int = attrs.field(validator=_count)
    corruptions: int = attrs.field(validator=_count)
    installs: int = attrs.field(validator=_count)
    answer_tokens: int = attrs.field(validator=_count)


@attrs.frozen(kw_only=True)
class Evidence:
    """The record that one plugin version passed the gate on one checkpoint.

    Attributes:
        family: The family's name.
        distribution: Distribution that contains the plugin.
        plugin_version: Version of the distribution.
        state_version: Version of the state that the plugin writes.
        model_type: `model_type` of the checkpoint.
        fingerprint: Fingerprint of the checkpoint, in hexadecimal.
        neve_version: Version of the core that ran the gate.
        date: Date of the run, in ISO form.
        figures: Measurements of the gate.
    """

    family: str = attrs.field(validator=validators.matches_re(_FAMILY))
    distribution: str
    plugin_version: str
    state_version: int = attrs.field(validator=_count)
    model_type: str
    fingerprint: str = attrs.field(validator=validators.matches_re(r"[0-9a-f]{64}"))
    neve_version: str
    date: str = attrs.field(validator=_iso_date)
    figures: Figures


@attrs.frozen
class EvidenceVerdict:
    """Whether evidence is valid for the installed plugin.

    Attributes:
        valid: True if the evidence is valid.
        reason: The reason for either verdict.
    """

    valid: bool
    reason: str


def evidence_dir(configured: str | None = None) -> Path:
    """Return the folder of the evidence.

    Args:
        configured: The setting `cold_evidence_dir`; None means the platform's folder for
            settings.

    Raises:
        EvidenceError: The user has no home folder.
    """
    try:
        if configured is not None:
            return Path(configured).expanduser()
        return _settings_dir() / "neve" / "evidence"
    except RuntimeError as error:
        raise EvidenceError(f"there is no folder for evidence: {error}") from error


def _settings_dir() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # the XDG specification says to ignore a relative path
    return named if named.is_absolute() else Path.home() / ".config"


def evidence_path(directory: Path, family: str) -> Path:
    """Return the path of a family's evidence.

    Raises:
        EvidenceError: The family's name is no plain file name.
    """
    if _FAMILY.fullmatch(family) is None:
        raise EvidenceError(
            f"{family!r} cannot name evidence: a family's name has 1 to 64 letters, digits, "
            "'_', '-' or '.', and does not begin with a dot"
        )
    return directory / f"{family}.json"


def write_evidence(directory: Path, evidence: Evidence) -> Path:
    """Write evidence in place of the family's earlier evidence, and return its path.

    Raises:
        EvidenceError: The file cannot be written.
    """
    path = evidence_path(directory, evidence.family)
    text = json.dumps({"format": FORMAT, **attrs.asdict(evidence)}, indent=2) + "\n"
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be written: {error}") from error
    return path


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():  # a read from a pipe or a device might never end
            raise EvidenceError(f"{path}: there is no such file")
        with path.open("rb") as file:
            data = file.read(MAX_EVIDENCE_BYTES + 1)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read: {error}") from error
    if len(data) > MAX_EVIDENCE_BYTES:
        raise EvidenceError(
            f"{path}: is no evidence: the size exceeds {MAX_EVIDENCE_BYTES} bytes"
        )
    return data


def read_evidence(path: Path) -> Evidence:
    """Read evidence.

    Raises:
        EvidenceError: The file is missing, unreadable, of another format, or does not match
            the fields of `Evidence`.
    """
    data = _read(path)
    try:
        raw: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path}: is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.pop("format", None) != FORMAT:
        raise EvidenceError(f"{path}: is no evidence: the format is not {FORMAT!r}")
    try:
        return structure(raw, Evidence, _CONVERTER)
    except SettingsError as error:
        raise EvidenceError(f"{path}: {error}") from error


def _mismatches(evidence: Evidence, installed: dict[str, str | int]) -> list[str]:
    return [
        f"{name.replace('_', ' ')} {getattr(evidence, name)!r} is not {value!r}"
        for name, value in installed.items()
        if getattr(evidence, name) != value
    ]


def _shortcomings(figures: Figures) -> list[str]:
    """Return the requirements that the figures fail to meet.

    A restored and a recomputed prefix give the same answer. Only the counts prove that a
    prefix was restored.
    """
    shown = {"hits": figures.hits, "restored tokens": figures.restored_tokens}
    missing = [f"the figures show no {name}" for name, count in shown.items() if count == 0]
    if figures.answer_tokens == 0:
        missing.append("no answer was compared")
    if figures.corruptions:
        missing.append(f"{figures.corruptions} objects were rejected as corrupt")
    return missing


def verify(
    evidence: Evidence,
    *,
    family: str,
    distribution: str,
    plugin_version: str,
    state_version: int,
    model_type: str,
) -> EvidenceVerdict:
    """Return whether evidence is valid for a plugin as installed now.

    Another version of the plugin needs evidence of its own.

    Args:
        evidence: Evidence from `read_evidence`.
        family: The family's name.
        distribution: Distribution that contains the plugin.
        plugin_version: Version of the distribution.
        state_version: Version of the state that the plugin writes.
        model_type: `model_type` of the checkpoint that is being loaded.
    """
    installed: dict[str, str | int] = {
        "family": family,
        "distribution": distribution,
        "plugin_version": plugin_version,
        "state_version": state_version,
        "model_type": model_type,
    }
    faults = _mismatches(evidence, installed) + _shortcomings(evidence.figures)
    if faults:
        return EvidenceVerdict(False, f"the evidence of {evidence.date}: {'; '.join(faults)}")
    plugin = f"{distribution} {plugin_version}"
    return EvidenceVerdict(True, f"{plugin} passed the restart-parity gate on {evidence.date}")
