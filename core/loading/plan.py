"""All that loading decides before there is an array, as plain values that can be printed."""

from __future__ import annotations

import attrs

from ..kvcache.memory import ceil_mib
from ..kvcache.pool_plan import PoolPlan
from ..kvcache.stats import group_kind
from ..settings import SchedulerSettings
from .cache_plan import CachePlan
from .examination import Examined
from .model_plan import ModelPlan


@attrs.frozen(eq=False)
class LoadPlan:
    """All that is decided before the arrays of the cache exist.

    Attributes:
        model: How the model is run.
        cache: The sizes of its cache.
    """

    model: ModelPlan
    cache: CachePlan

    @classmethod
    def expected(cls, examined: Examined) -> LoadPlan:
        """Plan with the bytes that the checkpoint's headers promise; no weight is read.

        A family that leaves tensors of the checkpoint unread takes less than that.

        Raises:
            MemoryBudgetError: The cache does not fit beside the weights.
        """
        model = ModelPlan.of(examined)
        promised = model.weights.num_bytes
        return cls(model, CachePlan.of(model, promised, unread_bytes=promised))

    @property
    def scheduling(self) -> SchedulerSettings:
        """The scheduler's settings, with slices that the pools have room for."""
        scheduling = self.model.scheduling
        if self.cache.max_slice == self.model.max_slice:
            return scheduling
        return attrs.evolve(scheduling, long_prefill_tokens=self.cache.max_slice)

    @property
    def initial_blocks(self) -> int:
        """Blocks of the primary group at load; 0 without pools."""
        return self.cache.pools.initial_blocks if self.model.lane == "paged" else 0

    def __str__(self) -> str:
        """Return a line a decision."""
        width = max(len(name) for name, _ in self.lines())
        return "\n".join(f"{name:<{width}}  {text}" for name, text in self.lines())

    def lines(self) -> list[tuple[str, str]]:
        """Return the name and the text of each decision."""
        model, cache = self.model, self.cache
        subject, pools = model.subject, cache.pools
        lines = [
            ("model", f"{subject.model_type} by {model.family.name} {model.family.version}"),
            ("dtype", subject.dtype),
            ("weights", f"{ceil_mib(cache.weight_bytes)} MiB"),
            ("rows", "one at a time" if model.row_exact else "in one batch"),
            ("context", f"{model.max_context} tokens, {pools.effective_window_tokens} cached"),
            ("slices", f"up to {cache.max_slice} tokens"),
            ("lane", f"{model.lane}, blocks of {model.block_size} tokens"),
        ]
        return [*lines, *(self._pool_lines() if model.lane == "paged" else [])]

    def _pool_lines(self) -> list[tuple[str, str]]:
        pools, layout = self.cache.pools, self.model.layout
        lines = [
            (f"group {index}", f"{group_kind(spec)}, {_size(pools, index)} blocks")
            for index, spec in enumerate(layout.groups)
        ]
        if layout.states:
            running, kept = pools.state_bytes, pools.snapshot_bytes
            text = f"{ceil_mib(running)} MiB running, up to {ceil_mib(kept)} MiB kept"
            lines.append(("states", text))
        return lines


def _size(pools: PoolPlan, group: int) -> str:
    size = pools.groups[group]
    if size.initial_blocks == size.max_blocks:
        return str(size.max_blocks)
    return f"{size.initial_blocks} to {size.max_blocks}"
