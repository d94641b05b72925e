"""The sizes of a cache beside weights of a size, decided before its arrays exist."""

from __future__ import annotations

import attrs

from ..kvcache.memory import GIB, MIB
from ..kvcache.pool_plan import PoolPlan, Sizing, plan_pools
from ..kvcache.state_keeper import SnapshotBudget
from ..metal.runtime import device
from ..settings import CacheSettings
from .model_plan import ModelPlan


@attrs.frozen
class _Free:
    """Bytes that the weights leave.

    Attributes:
        device: Of the device; None if the system does not report them.
        capped: Of the cap; None without a cap.
        headroom: Bytes of the device that stay free.
    """

    device: int | None
    capped: int | None
    headroom: int

    @property
    def total(self) -> int:
        """Bytes that are left, 0 if nobody knows."""
        return min((n for n in (self.device, self.capped) if n is not None), default=0)

    @property
    def beside_headroom(self) -> int | None:
        """Bytes that the cache may take, None if nobody knows."""
        usable = None if self.device is None else max(0, self.device - self.headroom)
        return min((n for n in (usable, self.capped) if n is not None), default=None)


@attrs.frozen(kw_only=True)
class CachePlan:
    """The sizes of a cache beside weights of a size.

    Attributes:
        weight_bytes: Bytes of the weights.
        pools: Sizes of the pools.
        snapshots: Bytes that kept states of recurrent layers may take.
        max_slice: Tokens of one sequence that a step computes, at most.
    """

    weight_bytes: int
    pools: PoolPlan
    snapshots: SnapshotBudget
    max_slice: int

    @classmethod
    def of(cls, model: ModelPlan, weight_bytes: int, *, unread_bytes: int = 0) -> CachePlan:
        """Size the cache of a model.

        Args:
            model: How the model is run.
            weight_bytes: Bytes of its weights.
            unread_bytes: Those of them that are not in memory yet.

        Raises:
            MemoryBudgetError: The cache does not fit beside the weights.
        """
        free = _free_bytes(model.settings.cache, weight_bytes, unread_bytes)
        snapshots = _snapshots(model, free.total)
        sizing = _sizing(model, snapshots, free.beside_headroom)
        pools = plan_pools(sizing)
        max_slice = min(sizing.max_slice, pools.max_slice or sizing.max_slice)
        return cls(
            weight_bytes=weight_bytes, pools=pools, snapshots=snapshots, max_slice=max_slice
        )


def _free_bytes(cache: CacheSettings, weight_bytes: int, unread_bytes: int) -> _Free:
    device_bytes, limit = device.available_bytes(), cache.cache_limit_gb
    if device_bytes is not None:
        device_bytes = max(0, device_bytes - unread_bytes)
    capped = None if limit is None else max(0, int(limit * GIB) - weight_bytes)
    return _Free(device_bytes, capped, int(cache.gpu_headroom_gb * GIB))


def _snapshots(model: ModelPlan, free_bytes: int) -> SnapshotBudget:
    """Return the budget of kept states, none without recurrent layers or pools."""
    if not model.layout.states or model.lane == "flat":
        return SnapshotBudget(0, 0)
    asked = model.settings.cache.state_snapshot_memory_mb
    return SnapshotBudget.of(asked, free_bytes, model.layout.state_bytes(model.dtype.size))


def _sizing(model: ModelPlan, snapshots: SnapshotBudget, available: int | None) -> Sizing:
    cache = model.settings.cache
    return Sizing(
        layout=model.layout,
        block_size=model.block_size,
        itemsize=model.dtype.size,
        max_context_tokens=model.max_context,
        max_num_seqs=model.scheduling.max_num_seqs,
        max_slice=model.max_slice,
        max_bytes=_bytes(cache.paged_cache_memory_mb),
        initial_bytes=_bytes(cache.paged_cache_initial_memory_mb),
        available_bytes=available,
        snapshot_bytes=snapshots.num_bytes,
    )


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB
