"""How a model is run, decided from its config and the settings alone."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs
import mlx.core as mx

from ..catalogue import Family
from ..checkpoint.checkpoint import Checkpoint
from ..checkpoint.weights import Weights
from ..contract.cache_spec import CacheLayout
from ..contract.plan import ExecutionPlan, ModelShape
from ..engine.persistence import Subject
from ..settings import CacheSettings, SchedulerSettings, Settings
from .examination import Examined

LaneName: TypeAlias = Literal["paged", "flat"]


@attrs.frozen(kw_only=True, eq=False)
class ModelPlan:
    """How a model is run, whatever its weights and its cache take.

    Attributes:
        subject: The model, as the cold tier tells it from others.
        checkpoint: Its checkpoint, of which headers have been read.
        settings: The settings in force.
        scheduling: Those of the scheduler, on the family's prefill grid.
        shape: Sizes that the family reads from its config.
        execution: How the family wants to be run.
        dtype: Dtype of arithmetic and of the cache.
        max_context: Tokens of the longest sequence.
        row_exact: Rows are computed one at a time.
        lane: Discipline of its requests.
    """

    subject: Subject
    checkpoint: Checkpoint = attrs.field(repr=False)
    settings: Settings
    scheduling: SchedulerSettings
    shape: ModelShape
    execution: ExecutionPlan
    dtype: mx.Dtype
    max_context: int
    row_exact: bool
    lane: LaneName

    @classmethod
    def of(cls, examined: Examined) -> ModelPlan:
        """Decide how an examined model is run."""
        family, config = examined.subject.family, examined.subject.config
        settings, execution = examined.settings, family.execution_plan(config)
        shape = family.model_shape(config)
        return cls(
            subject=examined.subject,
            checkpoint=examined.checkpoint,
            settings=settings,
            scheduling=_on_grid(settings.scheduler, execution.prefill_chunk),
            shape=shape,
            execution=execution,
            dtype=examined.dtype,
            max_context=min(shape.max_context, settings.model.max_context or shape.max_context),
            row_exact=_row_exact(settings, execution, examined.checkpoint),
            lane=_lane(settings.cache, execution),
        )

    @property
    def family(self) -> Family:
        """The family that runs the model."""
        return self.subject.family

    @property
    def config(self) -> Any:
        """The family's config."""
        return self.subject.config

    @property
    def layout(self) -> CacheLayout:
        """The cache layout."""
        return self.subject.layout

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.subject.block_size

    @property
    def weights(self) -> Weights:
        """The weights, to be cast to the dtype of arithmetic when they are read."""
        return attrs.evolve(self.checkpoint.weights, dtype=self.dtype)

    @property
    def max_slice(self) -> int:
        """Tokens of one sequence that a step computes at most, if the pools allow them.

        A row-exact slice is never cut by the budget.
        """
        tokens = min(self.scheduling.prefill_chunk_size, self.scheduling.long_prefill_tokens)
        if not self.row_exact:
            tokens = min(tokens, self.scheduling.max_batched_tokens)
        return min(tokens, self.max_context)


def _on_grid(scheduler: SchedulerSettings, multiple: int | None) -> SchedulerSettings:
    """Return settings whose prefill grid respects the family's chunk."""
    if multiple is None:
        return scheduler
    chunk = max(multiple, scheduler.prefill_chunk_size // multiple * multiple)
    return attrs.evolve(scheduler, prefill_chunk_size=chunk)


def _row_exact(settings: Settings, plan: ExecutionPlan, checkpoint: Checkpoint) -> bool:
    if settings.scheduler.row_exact is not None:
        return settings.scheduler.row_exact
    quantised = checkpoint.weights.quantization is not None
    return plan.row_exact == "always" or (plan.row_exact == "quantized" and quantised)


def _lane(cache: CacheSettings, plan: ExecutionPlan) -> LaneName:
    asked = cache.use_block_paged_cache
    return "paged" if (plan.paged if asked is None else asked) else "flat"
