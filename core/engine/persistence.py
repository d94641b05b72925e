"""Decides whether a model's prefixes are kept on disk, and opens the cold tier."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ..catalogue import Family
from ..checkpoint.digest_memory import DigestMemory
from ..checkpoint.identity import WeightIdentity
from ..coldtier.admission.allowlist import PersistDecision, decide
from ..coldtier.admission.evidence import (
    EvidenceVerdict,
    evidence_dir,
    evidence_path,
    read_evidence,
    verify,
)
from ..coldtier.inspection.handle import limits_of
from ..coldtier.objects.fingerprint import FingerprintComponents, geometry
from ..coldtier.objects.geometry import KvGeometry
from ..coldtier.stats import Counters
from ..coldtier.store.location import default_root
from ..coldtier.store.store import ColdStore
from ..coldtier.tier import ColdTier
from ..coldtier.transfer.capture import CaptureBudget
from ..contract.cache_spec import CacheLayout
from ..contract.sidecar import SidecarPolicy
from ..errors import EvidenceError, StoreUnavailableError
from ..log import get_logger
from ..scheduler.telemetry import SchedulerCounters
from ..settings import ColdSettings
from ..telemetry.trace import Trace
from .cold import EngineCold
from .identification import Identification
from .lanes import PagedLane


@attrs.frozen(kw_only=True)
class Subject:
    """The facts about a model that decide persistence.

    Attributes:
        family: The model's family.
        config: The family's config.
        raw_config: The contents of config.json.
        layout: The model's cache layout.
        block_size: Tokens of a block.
        dtype: Compute and cache dtype.
        weights: The state of the weight files before loading.
    """

    family: Family
    config: Any
    raw_config: Mapping[str, Any]
    layout: CacheLayout
    block_size: int
    dtype: str
    weights: WeightIdentity

    @property
    def policy(self) -> SidecarPolicy | None:
        """The layout of the model's sidecars; None if blocks hold the whole cache."""
        return self.family.build_sidecar_policy(self.config, self.dtype)

    @property
    def model_type(self) -> str:
        """The model type in config.json."""
        return str(self.raw_config["model_type"])

    def components(self, weights: bytes) -> FingerprintComponents:
        """Return the fingerprint's components: everything that decides cache contents."""
        return FingerprintComponents(
            family=self.family.name,
            family_state_version=self.family.info.state_version,
            model_type=self.model_type,
            config=self.raw_config,
            weights=weights,
            block_size=self.block_size,
            groups=geometry(self.layout),
            cache_dtype=self.dtype,
            compute_dtype=self.dtype,
        )


def decide_persistence(
    subject: Subject,
    settings: ColdSettings,
    *,
    paged: bool,
    gate: bool = False,
) -> PersistDecision:
    """Decide whether a model's prefixes are kept on disk, with a readable reason.

    Args:
        subject: The model.
        settings: The settings of the cold tier.
        paged: Whether requests run on the block-paged cache.
        gate: Whether the restart-parity gate runs. The gate admits families, so it skips
            admission.
    """
    decision = admission(subject, settings)
    if gate:
        decision = PersistDecision(True, "the restart-parity gate runs")
    if decision.persist and not paged:
        return PersistDecision(False, "the flat path keeps no blocks that could be written")
    if decision.persist and (obstacle := _unwritable(subject)):
        return PersistDecision(False, obstacle)
    if decision.persist and not subject.weights.unchanged():
        return PersistDecision(False, "a weight file changed while it was loaded")
    return decision


def _unwritable(subject: Subject) -> str | None:
    """Return why a model's cache cannot be written; None if it can be written."""
    layout = subject.layout
    if len(layout.groups) - len(layout.windows) != 1:
        return "a prefix is written as the blocks of one group of full attention"
    if not layout.windows and not layout.states:
        return None
    if len(layout.windows) > 1:
        return "a sidecar holds windows of one kind, and the layers have several"
    if subject.policy is None or (layout.windows and layout.states):
        return "the family keeps state that no sidecar holds"
    if any((spec.visible_tokens or 0) % subject.block_size for spec in layout.groups):
        return "the window is no multiple of the block size"
    return None


def admission(subject: Subject, settings: ColdSettings) -> PersistDecision:
    """Return whether family and settings allow persistence, for either lane."""
    return decide(
        subject.model_type,
        subject.family.cold_restore_eligibility(subject.config),
        explicit=settings.persist_paged_cache,
        evidence=_verdict(subject, settings),
    )


def _verdict(subject: Subject, settings: ColdSettings) -> EvidenceVerdict | None:
    """Return the verdict on a family's evidence; None if the settings name no evidence."""
    family = subject.family
    if family.name not in settings.certified_families:
        return None
    try:
        evidence = read_evidence(_evidence_path(family, settings))
    except EvidenceError as error:
        return EvidenceVerdict(False, str(error))
    return verify(
        evidence,
        family=family.name,
        distribution=family.info.distribution,
        plugin_version=family.version,
        state_version=family.info.state_version,
        model_type=subject.model_type,
    )


def _evidence_path(family: Family, settings: ColdSettings) -> Path:
    return evidence_path(evidence_dir(settings.cold_evidence_dir), family.name)


def open_cold(
    subject: Subject,
    settings: ColdSettings,
    lane: PagedLane,
    *,
    counters: SchedulerCounters,
    trace: Trace,
    may_spill: bool,
) -> EngineCold | PersistDecision:
    """Open the cold tier of a model; return a refusal if the store is unavailable."""
    try:
        root = default_root(settings.cold_cache_dir)
        store = ColdStore.open(root, limits_of(settings), Counters())
    except StoreUnavailableError as error:
        get_logger("engine").warning("engine.store.unavailable", reason=error.reason)
        return PersistDecision(False, str(error))
    tier = ColdTier(
        store,
        KvGeometry.of(subject.layout, subject.block_size, subject.dtype),
        CaptureBudget(
            settings.cold_capture_blocks_per_turn, settings.cold_capture_budget_ms / 1e3
        ),
        policy=subject.policy,
    )
    memory = DigestMemory(root / "digests.json")
    identity = Identification(subject.weights, subject.components, memory, tier.identify)
    if memory.recall().keys() >= set(subject.weights.files.values()):
        identity.wait()  # all digests are remembered: fast, and the first request can restore
    return EngineCold(
        tier,
        lane,
        counters=counters,
        trace=trace,
        # a spill writes no sidecar, and blocks without a sidecar cannot be restored
        may_spill=may_spill and subject.policy is None,
        identity=identity,
        drain_timeout_s=settings.cold_drain_timeout_s,
    )
