"""The decision to persist: the core's allowlist, the plugin's statement, then the settings."""

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
    """Whether a model's prefixes are written to disk and restored.

    Attributes:
        persist: True to write and restore; False to do neither.
        reason: The reason, in one sentence.
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
    """Decide for one model; the user's setting counts only for a safe model.

    Args:
        model_type: `model_type` of config.json.
        eligibility: The plugin's statement.
        explicit: The setting `persist_paged_cache` from any source; None if not given.
        evidence: The verdict on the evidence of a family that the user opted in by name; None
            for other families.
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
    """Return the reason that no setting can override; None if the model may persist."""
    listed = model_type in COLD_RESTORE_FAMILIES
    if listed or (evidence is not None and evidence.valid):
        if eligibility.eligible:
            return None
        side = "the core's allowlist" if listed else "the evidence"
        return (
            f"{side} admits {model_type!r} but its plugin says no "
            f"({eligibility.reason}), so the tier stays closed"
        )
    if evidence is not None:
        return f"{model_type!r} is not on the core's allowlist, and {evidence.reason}"
    if eligibility.eligible:
        return (
            f"the plugin of {model_type!r} says yes ({eligibility.reason}) but the core's "
            "allowlist does not name it, so the tier stays closed until evidence of "
            "`neve certify` is opted in"
        )
    return (
        f"{model_type!r} is not on the core's allowlist, and its plugin says no "
        f"({eligibility.reason})"
    )


def drift(listed: frozenset[str], registered: Mapping[str, ColdEligibility]) -> tuple[str, ...]:
    """Return one sentence for each disagreement between a list and the plugins.

    Args:
        listed: Model types on the list.
        registered: Model type -> statement of its plugin, for the plugins within the list's
            scope.
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
