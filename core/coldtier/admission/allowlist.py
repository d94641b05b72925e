"""Who may persist and restore: the core's list, the plugin's statement, then what was asked."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...contract.plan import ColdEligibility
from .evidence import EvidenceVerdict

COLD_RESTORE_FAMILIES = frozenset(
    {
        "gemma4",
        "gemma4_text",
        "lfm2",
        "lfm2_moe",
        "muse_glimmer",
        "muse_glimmer_text",
        "nemotron_h",
        "qwen3",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
    }
)
"""Model types whose family passed the restart-parity gate in this repository."""


@attrs.frozen
class PersistDecision:
    """Whether a model's prefixes go to disk and come back.

    Attributes:
        persist: They do. If not, nothing is written and nothing read.
        reason: Why, in one sentence.
    """

    persist: bool
    reason: str


def decide(
    model_type: str,
    eligibility: ColdEligibility,
    *,
    explicit: bool | None,
    evidence: EvidenceVerdict | None,
) -> PersistDecision:
    """Decide for one model; what the user asks for is heard only where it is safe.

    Args:
        model_type: What config.json calls the model.
        eligibility: What its plugin states.
        explicit: The setting `persist_paged_cache`, wherever it came from; None if not given.
        evidence: The verdict on the evidence of a family that the user opted in by name;
            None for any other.
    """
    barred = _barred(model_type, eligibility, evidence)
    if barred is not None:
        return PersistDecision(False, barred)
    if explicit is None:
        return PersistDecision(False, "off unless persist_paged_cache asks for it")
    return PersistDecision(explicit, f"persist_paged_cache says {'on' if explicit else 'off'}")


def _barred(
    model_type: str, eligibility: ColdEligibility, evidence: EvidenceVerdict | None
) -> str | None:
    """Return why the model may not persist whatever is asked for; None if it may."""
    listed = model_type in COLD_RESTORE_FAMILIES
    if listed or (evidence is not None and evidence.valid):
        if eligibility.eligible:
            return None
        side = "the core's allowlist" if listed else "the evidence"
        return (
            f"{side} admits {model_type!r} but its plugin says no "
            f"({eligibility.reason}), so it stays closed"
        )
    if evidence is not None:
        return f"{model_type!r} is not on the core's allowlist, and {evidence.reason}"
    if eligibility.eligible:
        return (
            f"the plugin of {model_type!r} says yes ({eligibility.reason}) but the core's "
            "allowlist does not name it, so it stays closed until evidence of `neve certify` "
            "is opted in"
        )
    return (
        f"{model_type!r} is not on the core's allowlist, and its plugin says no "
        f"({eligibility.reason})"
    )


def drift(listed: frozenset[str], registered: Mapping[str, ColdEligibility]) -> tuple[str, ...]:
    """Return one sentence a disagreement between a list and what plugins state.

    Args:
        listed: Model types of the list.
        registered: Model type -> statement, of the plugins that the list speaks of.
    """
    sentences: list[str] = []
    for model_type in sorted(listed | registered.keys()):
        stated = registered.get(model_type)
        if stated is None:
            sentences.append(f"{model_type!r} is listed, but no plugin answers for it")
        elif model_type in listed and not stated.eligible:
            sentences.append(
                f"{model_type!r} is listed, but its plugin says no: {stated.reason}"
            )
        elif model_type not in listed and stated.eligible:
            sentences.append(f"{model_type!r} is not listed, but its plugin says yes")
    return tuple(sentences)
