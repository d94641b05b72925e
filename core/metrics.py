"""A model's figures, and the text in which Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .coldtier.stats import ColdCacheStats, ColdSidecarStats
from .kvcache.stats import CacheStats
from .scheduler.telemetry import SchedulerStats
from .telemetry.prometheus import Metric, Sample, from_stats, render

SCHEDULER_GAUGES = frozenset(
    {
        "max_batch_occupancy",
        "running",
        "waiting",
        "ssd_restore_waiting",
        "block_capacity",
        "block_available",
        "block_watermark",
        "reserved_blocks",
    }
)
POOL_GAUGES = frozenset(
    {"num_blocks", "max_num_blocks", "num_free", "num_evictable", "num_live"}
)
COLD_GAUGES = frozenset({"enabled", "quota_bytes"})


@attrs.frozen
class ModelStats:
    """Figures of a loaded model.

    Attributes:
        scheduler: Steps, admissions, preemptions.
        pools: Blocks and prefix hits, one entry a group; None on the flat path.
        cold: The cold tier; not enabled without a store.
        sidecar: State beside the blocks, on its way to and from the cold tier.
        kernels: `operation:variant` -> times it was put into a graph by this process.
        memory: `active`, `peak` and `cache` bytes of MLX.
        faults: Kind -> faults that the engine has survived, as `neve.engine.faults` names them.
    """

    scheduler: SchedulerStats
    pools: CacheStats | None
    cold: ColdCacheStats
    sidecar: ColdSidecarStats
    kernels: Mapping[str, int]
    memory: Mapping[str, int]
    faults: Mapping[str, int] = attrs.field(factory=dict)


def render_metrics(model: str, stats: ModelStats) -> str:
    """Return figures in Prometheus's text format.

    Args:
        model: Value of the label `model`.
        stats: The figures.
    """
    labels = {"model": model}
    families = [
        *from_stats(
            "neve_scheduler",
            stats.scheduler,
            gauges=SCHEDULER_GAUGES,
            key_labels={"decode_batch_occupancy_hist": "rows"},
            labels=labels,
        ),
        *from_stats("neve_cold", stats.cold, gauges=COLD_GAUGES, labels=labels),
        *from_stats("neve_cold_sidecar", stats.sidecar, labels=labels),
        *_pools(stats.pools, labels),
        Metric(
            "neve_kernels_total",
            "counter",
            "Times that an operation was put into a graph.",
            [Sample(n, {**labels, "variant": name}) for name, n in stats.kernels.items()],
        ),
        Metric(
            "neve_engine_faults_total",
            "counter",
            "Faults that the engine has survived.",
            [Sample(n, {**labels, "kind": kind}) for kind, n in stats.faults.items()],
        ),
        Metric(
            "neve_memory_bytes",
            "gauge",
            "Memory of arrays.",
            [Sample(n, {**labels, "kind": kind}) for kind, n in stats.memory.items()],
        ),
    ]
    return render(families)


def _pools(pools: CacheStats | None, labels: Mapping[str, str]) -> list[Metric]:
    if pools is None:
        return []
    metrics = from_stats("neve_prefix", pools, gauges={"snapshot_bytes"}, labels=labels)
    for index, group in enumerate(pools.groups):
        at = {**labels, "group": str(index), "kind": group.kind}
        metrics += from_stats("neve_pool", group, gauges=POOL_GAUGES, labels=at)
    return metrics
