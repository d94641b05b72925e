"""Who may persist and restore."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path

import pytest

from neve.catalogue import discover
from neve.coldtier.admission import allowlist
from neve.coldtier.admission.allowlist import (
    COLD_RESTORE_FAMILIES,
    PersistDecision,
    decide,
    drift,
)
from neve.coldtier.admission.evidence import EvidenceVerdict
from neve.contract.plan import ColdEligibility

PLUGINS = Path(__file__).parents[3] / "plugins"
YES = ColdEligibility(True, "all state is in the blocks")
NO = ColdEligibility(False, "the gate has not been run")
PASSED = EvidenceVerdict(True, "neve-x 1 passed")
VOID = EvidenceVerdict(False, "the evidence is of another version")
ASKED = (None, False, True)


def _first_party() -> dict[str, ColdEligibility]:
    """Return what the installed plugins of this repository state."""
    names = {
        tomllib.loads(file.read_text())["project"]["name"]
        for file in PLUGINS.glob("*/pyproject.toml")
    }
    families = [f for f in discover().families.values() if f.info.distribution in names]

    assert {family.info.distribution for family in families} == names

    return {
        model_type: family.cold_restore_eligibility()
        for family in families
        for model_type in family.info.model_types
    }


def test_the_list_is_what_the_plugins_state() -> None:
    """FW-4: the committed list and the installed plugins agree, in both directions."""
    assert drift(COLD_RESTORE_FAMILIES, _first_party()) == ()


def test_no_stranger_is_on_the_list() -> None:
    """FW-4: a family that is not of this repository is admitted by evidence alone."""
    assert _first_party().keys() >= COLD_RESTORE_FAMILIES


@pytest.mark.parametrize(
    ("listed", "registered", "sentences"),
    [
        ({"a"}, {"a": YES}, []),
        (set[str](), {"a": NO}, []),
        (
            {"a"},
            {"a": NO},
            ["'a' is listed, but its plugin says no: the gate has not been run"],
        ),
        (set[str](), {"a": YES}, ["'a' is not listed, but its plugin says yes"]),
        ({"a"}, {}, ["'a' is listed, but no plugin answers for it"]),
        (
            {"c", "b"},
            {"c": NO, "a": YES, "d": NO},
            [
                "'a' is not listed, but its plugin says yes",
                "'b' is listed, but no plugin answers for it",
                "'c' is listed, but its plugin says no: the gate has not been run",
            ],
        ),
    ],
)
def test_drift_is_told_in_both_directions(
    listed: set[str], registered: dict[str, ColdEligibility], sentences: list[str]
) -> None:
    """FW-4: each disagreement is a sentence that says which side says what."""
    assert drift(frozenset(listed), registered) == tuple(sentences)


def _expected(
    listed: bool,
    stated: ColdEligibility,
    explicit: bool | None,
    evidence: EvidenceVerdict | None,
) -> bool:
    admitted = listed or evidence == PASSED
    return admitted and stated.eligible and explicit is True


@pytest.mark.parametrize("listed", [True, False])
def test_the_whole_table(listed: bool) -> None:
    """CT-1: the list or evidence, then the plugin, then the setting, else off."""
    model_type = "qwen3" if listed else "x"
    table = itertools.product((YES, NO), ASKED, (None, VOID, PASSED))
    for stated, explicit, evidence in table:
        decision = decide(model_type, stated, explicit=explicit, evidence=evidence)

        assert decision.persist is _expected(listed, stated, explicit, evidence)
        assert decision.reason
        assert not decision.reason.endswith(".")
        assert "\n" not in decision.reason


@pytest.mark.parametrize("model_type", ["x", "", "Qwen3", "qwen3 ", "nemotron"])
@pytest.mark.parametrize("explicit", ASKED)
def test_nothing_opens_an_unlisted_family(model_type: str, explicit: bool | None) -> None:
    """CT-1: no setting and no statement of a plugin stands in for the gate."""
    for stated, evidence in itertools.product((YES, NO), (None, VOID)):
        decision = decide(model_type, stated, explicit=explicit, evidence=evidence)

        assert not decision.persist
        assert (
            "not on the core's allowlist" in decision.reason
            or "does not name" in decision.reason
        )


@pytest.mark.parametrize(
    ("explicit", "persist", "reason"),
    [
        (True, True, "persist_paged_cache says on"),
        (False, False, "persist_paged_cache says off"),
        (None, False, "off unless persist_paged_cache asks for it"),
    ],
)
def test_an_admitted_family_does_what_was_asked(
    explicit: bool | None, persist: bool, reason: str
) -> None:
    """CT-1: the reason names the signal that decided, by list and by evidence alike."""
    for model_type, evidence in (("qwen3", None), ("qwen3", VOID), ("x", PASSED)):
        decision = decide(model_type, YES, explicit=explicit, evidence=evidence)

        assert decision == PersistDecision(persist, reason)


SAYS_YES = "says yes (all state is in the blocks)"
SAYS_NO = "says no (the gate has not been run)"


@pytest.mark.parametrize(
    ("model_type", "stated", "evidence", "parts"),
    [
        ("qwen3", NO, None, ["the core's allowlist admits 'qwen3'", SAYS_NO, "stays closed"]),
        ("x", NO, PASSED, ["the evidence admits 'x'", SAYS_NO, "stays closed"]),
        ("x", YES, None, [SAYS_YES, "allowlist does not name it", "`neve certify`"]),
        ("x", YES, VOID, ["'x' is not on the core's allowlist", VOID.reason]),
        ("x", NO, VOID, ["'x' is not on the core's allowlist", VOID.reason]),
        ("x", NO, None, ["'x' is not on the core's allowlist", SAYS_NO]),
    ],
)
def test_a_barred_family_is_told_who_bars_it(
    model_type: str, stated: ColdEligibility, evidence: EvidenceVerdict | None, parts: list[str]
) -> None:
    """FW-4: where the list and the plugin disagree the reason says which side says what."""
    decision = decide(model_type, stated, explicit=True, evidence=evidence)

    assert not decision.persist
    assert [part for part in parts if part not in decision.reason] == []


def test_the_list_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """CT-1: taking a model type off the list closes it whatever else says yes."""
    monkeypatch.setattr(allowlist, "COLD_RESTORE_FAMILIES", frozenset[str]())

    assert not decide("qwen3", YES, explicit=True, evidence=None).persist
