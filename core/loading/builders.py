"""From a plan to a model that is ready to run; on the engine thread, which owns the arrays."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import attrs
import mlx.nn as nn
from mlx.utils import tree_flatten

from ..coldtier.admission.allowlist import PersistDecision
from ..contract.plan import OutputProtocol
from ..engine.cold import EngineCold, cold_stats
from ..engine.core import Core, ModelInfo
from ..engine.journal import Journal
from ..engine.lanes import FlatLane, PagedLane
from ..engine.persistence import decide_persistence, open_cold
from ..engine.runner import Runner
from ..kvcache.memory import GIB, MemoryCoordinator
from ..log import get_logger
from ..metal.linear.layout import prefer_layout
from ..scheduler.scheduler import Scheduler
from ..scheduler.telemetry import SchedulerCounters
from ..settings import Settings
from ..telemetry.trace import Trace
from ..telemetry.turn_log import TurnLog
from ..text.tokenizer import Tokenizer
from .cache_plan import CachePlan
from .examination import tokenizer_of
from .lanes import LaneBuilder
from .model_plan import ModelPlan
from .plan import LoadPlan


@attrs.frozen(eq=False)
class _Observers:
    """Those who count and write down what a model does."""

    trace: Trace
    counters: SchedulerCounters

    @classmethod
    def of(cls, settings: Settings) -> _Observers:
        telemetry = settings.telemetry
        trace = Trace.from_settings(telemetry.inference_trace, telemetry.inference_trace_file)
        return cls(trace, SchedulerCounters())


@attrs.frozen(eq=False)
class _Words:
    """Between text and ids, and how a family's models write."""

    tokenizer: Tokenizer
    protocol: OutputProtocol

    @classmethod
    def of(cls, plan: ModelPlan) -> _Words:
        protocol = plan.family.output_protocol(plan.config)
        return cls(tokenizer_of(plan.checkpoint), protocol)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer: the checkpoint's, and those the family knows of."""
        marks = (self.tokenizer.token_id(text) for text in self.protocol.end_of_turn)
        return self.tokenizer.eos_token_ids | {mark for mark in marks if mark is not None}


@attrs.frozen(eq=False)
class _Persistence:
    """Whether prefixes go to disk, and the cold tier if they do."""

    decision: PersistDecision
    cold: EngineCold | None = None


def build_core(source: str, model_plan: ModelPlan, *, gate: bool) -> Core:
    """Read the weights and build everything around them.

    Args:
        source: What `load` was given.
        model_plan: How the model is run.
        gate: The restart-parity gate loads.

    Raises:
        NeveError: As `load`.
    """
    words = _Words.of(model_plan)  # a broken tokenizer is found before the weights are read
    model = _build_model(model_plan)
    memory = _account(model_plan.settings, weight_bytes := _num_bytes(model))
    plan = LoadPlan(model_plan, CachePlan.of(model_plan, weight_bytes))
    lane = LaneBuilder(plan, memory).build()
    observers = _Observers.of(model_plan.settings)
    persistence = _open_cold(plan, lane, observers, gate=gate)
    info = _info(source, plan, words, persistence.decision)
    _log_loaded(info, plan)
    scheduler = _scheduler(plan, lane, observers, persistence.cold)
    runner = Runner(
        model_plan.family, model, model_plan.layout, lane, row_exact=model_plan.row_exact
    )
    journal = _journal(source, plan, observers, persistence.cold)
    return Core(info, scheduler, runner, persistence.cold, journal)


def _build_model(plan: ModelPlan) -> nn.Module:
    """Return the model with its weights read, laid out as its products read them."""
    model = plan.family.build_model(plan.config, plan.weights)
    prefer_layout(model)
    return model


def _num_bytes(model: nn.Module) -> int:
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))  # type: ignore[union-attr]


def _account(settings: Settings, weight_bytes: int) -> MemoryCoordinator:
    """Return the account of the model's arrays, with the weights entered."""
    limit = settings.cache.cache_limit_gb
    memory = MemoryCoordinator(None if limit is None else int(limit * GIB))
    memory.register("weights", weight_bytes)
    return memory


def _open_cold(
    plan: LoadPlan, lane: PagedLane | FlatLane, observers: _Observers, *, gate: bool
) -> _Persistence:
    """Decide whether prefixes go to disk, and open the store if they do."""
    model, settings = plan.model, plan.model.settings.cold
    decision = decide_persistence(
        model.subject, settings, paged=model.lane == "paged", gate=gate
    )
    if not decision.persist or isinstance(lane, FlatLane):
        return _Persistence(decision)
    opened = open_cold(
        model.subject,
        settings,
        lane,
        counters=observers.counters,
        trace=observers.trace,
        may_spill=model.execution.spill,
    )
    if isinstance(opened, PersistDecision):
        return _Persistence(opened)
    return _Persistence(decision, opened)


def _info(source: str, plan: LoadPlan, words: _Words, decision: PersistDecision) -> ModelInfo:
    """Return what a caller may know of the model."""
    model, cache = plan.model, plan.cache
    return ModelInfo(
        source=source,
        family=model.family,
        config=model.config,
        model_type=model.subject.model_type,
        tokenizer=words.tokenizer,
        protocol=words.protocol,
        eos_token_ids=words.eos_token_ids,
        settings=model.settings,
        max_context=model.max_context,
        vocab_size=model.shape.vocab_size,
        dtype=model.subject.dtype,
        lane=model.lane,
        row_exact=model.row_exact,
        weight_bytes=cache.weight_bytes,
        initial_blocks=plan.initial_blocks,
        effective_window_tokens=cache.pools.effective_window_tokens,
        persistence=decision,
    )


def _scheduler(
    plan: LoadPlan, lane: PagedLane | FlatLane, observers: _Observers, cold: EngineCold | None
) -> Scheduler:
    return Scheduler(
        plan.scheduling,
        lane.cache,
        max_context=plan.model.max_context,
        block_size=plan.model.block_size,
        row_exact=plan.model.row_exact,
        counters=observers.counters,
        cold=cold,
    )


def _journal(
    source: str, plan: LoadPlan, observers: _Observers, cold: EngineCold | None
) -> Journal:
    return Journal(
        source,
        observers.trace,
        _turn_log(plan.model.settings),
        partial(cold_stats, cold),
        observers.counters.decode_batch_occupancy_hist,
    )


def _turn_log(settings: Settings) -> TurnLog | None:
    directory = settings.telemetry.turn_log_dir
    return None if directory is None else TurnLog(Path(directory).expanduser())


def _log_loaded(info: ModelInfo, plan: LoadPlan) -> None:
    log, pools = get_logger("loading"), plan.cache.pools
    log.info(
        "loading.model.loaded",
        source=info.source,
        family=info.family.name,
        lane=info.lane,
        dtype=info.dtype,
        weight_bytes=info.weight_bytes,
        initial_blocks=info.initial_blocks,
        effective_window_tokens=info.effective_window_tokens,
    )
    if info.lane == "paged" and pools.dynamic:
        log.info(
            "loading.pool.dynamic",
            initial_blocks=pools.initial_blocks,
            max_blocks=pools.max_blocks,
        )
