"""From a path or a hub id to a running model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from .arguments import flag
from .catalogue import discover
from .checkpoint.checkpoint import Checkpoint, open_checkpoint
from .checkpoint.identity import WeightIdentity
from .checkpoint.resolve import resolve_checkpoint
from .coldtier.admission.allowlist import PersistDecision
from .contract.cache_spec import CacheLayout
from .contract.plan import ExecutionPlan, OutputProtocol
from .engine.cold import EngineCold, cold_stats
from .engine.core import Core, ModelInfo
from .engine.engine import Engine
from .engine.journal import Journal
from .engine.lanes import FlatLane, PagedLane
from .engine.persistence import Subject, decide_persistence, open_cold
from .engine.runner import Runner
from .errors import ConfigError
from .kvcache.block_allocator import BlockAllocator
from .kvcache.coordinator import Coordinator
from .kvcache.flat_coordinator import FlatCoordinator
from .kvcache.memory import MemoryCoordinator, PoolPlan, plan_pools
from .kvcache.state_keeper import StateKeeper
from .log import configure_if_unset, get_logger
from .metal.linear.layout import prefer_layout
from .metal.runtime import device
from .model import Model
from .pools.layer_pool import LayerPool
from .scheduler.scheduler import Scheduler
from .scheduler.telemetry import SchedulerCounters
from .settings import CacheSettings, Resolved, SchedulerSettings, Settings, resolve
from .telemetry.trace import Trace
from .telemetry.turn_log import TurnLog
from .text.gguf_tokenizer import gguf_tokenizer
from .text.tokenizer import Tokenizer

GIB = 1 << 30
MIB = 1 << 20

MAX_STATE_BYTES = 2 * GIB
"""What kept states of recurrent layers take at most unless settings say otherwise."""


def load(
    source: str | Path,
    *,
    settings: Settings | None = None,
    progress: bool = True,
    **overrides: Any,
) -> Model:
    """Load a checkpoint and start its engine.

    Args:
        source: A folder, a `.gguf` file, or a hub repository such as `Qwen/Qwen3-0.6B`.
        settings: Settings; keywords override them.
        progress: Show download progress.
        **overrides: Any field of any room of `Settings`, e.g. `max_num_seqs=4`.

    Raises:
        RequestError: The source is no path, or `progress` no bool.
        SettingsError: An unknown or impossible setting.
        CheckpointError: The checkpoint cannot be found, read or understood.
        FamilyNotInstalledError: No installed plugin answers for its model type.
        MemoryBudgetError: It does not fit.
    """
    configure_if_unset()
    flag("progress", progress)
    path = _resolve_path(source, settings, overrides, progress=progress)
    return Model(Engine(partial(_make_core, str(source), path, settings, overrides)))


def _resolve_path(
    source: str | Path,
    given: Settings | None,
    overrides: Mapping[str, Any],
    *,
    progress: bool,
) -> Path:
    # a wrong setting is refused before anything is downloaded
    revision = resolve(given, overrides).settings.model.revision
    return resolve_checkpoint(source, revision=revision, progress=progress)


@attrs.frozen(eq=False)
class Examined:
    """What is known of a model before its first weight is read.

    Attributes:
        subject: The model, as the cold tier tells it from others.
        checkpoint: Its checkpoint.
        settings: With what its config.json sets.
    """

    subject: Subject
    checkpoint: Checkpoint
    settings: Settings

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer."""
        return _tokenizer(self.checkpoint)


def examine(
    source: str | Path,
    *,
    settings: Settings | None = None,
    progress: bool = True,
    **overrides: Any,
) -> Examined:
    """Find out what `load` would load, and load nothing.

    Args:
        source: As in `load`.
        settings: As in `load`.
        progress: As in `load`.
        **overrides: As in `load`.

    Raises:
        SettingsError: As `load`.
        CheckpointError: As `load`.
        FamilyNotInstalledError: As `load`.
    """
    configure_if_unset()
    flag("progress", progress)
    path = _resolve_path(source, settings, overrides, progress=progress)
    return _examine(path, settings, overrides)


def _examine(path: Path, given: Settings | None, overrides: Mapping[str, Any]) -> Examined:
    # before the first weight is read: what is vouched for later is what was read
    weights = WeightIdentity.stat(path)
    checkpoint = open_checkpoint(path, dtype=None)
    settings = _settings(resolve(given, overrides, checkpoint.config))
    family = discover().for_model_type(_model_type(checkpoint))
    config = family.parse_config(checkpoint.config)
    subject = Subject(
        family=family,
        config=config,
        raw_config=checkpoint.config,
        layout=family.declare_cache_groups(config),
        block_size=settings.cache.paged_block_size,
        dtype=_name(_compute_dtype(settings, checkpoint)),
        weights=weights,
    )
    return Examined(subject, checkpoint, settings)


def load_for_gate(path: Path, store_dir: Path, **overrides: Any) -> Model:
    """Load a checkpoint whose family may not persist yet, to find out whether it could.

    For the restart-parity gate alone: what it writes lies in a store that is thrown away.

    Args:
        path: What `resolve_checkpoint` returned.
        store_dir: Folder of the store.
        **overrides: As in `load`.

    Raises:
        NeveError: As `load`.
    """
    configure_if_unset()
    settings = {**overrides, "cold_cache_dir": str(store_dir), "persist_paged_cache": True}
    return Model(Engine(partial(_make_core, str(path), path, None, settings, gate=True)))


def _make_core(
    source: str,
    path: Path,
    given: Settings | None,
    overrides: dict[str, Any],
    *,
    gate: bool = False,
) -> Core:
    """Load everything; runs on the engine thread."""
    examined = _examine(path, given, overrides)
    subject, checkpoint, settings = examined.subject, examined.checkpoint, examined.settings
    family, config, layout = subject.family, subject.config, subject.layout
    shape, plan = family.model_shape(config), family.execution_plan(config)
    max_context = min(shape.max_context, settings.model.max_context or shape.max_context)
    dtype = _compute_dtype(settings, checkpoint)
    model = family.build_model(config, attrs.evolve(checkpoint.weights, dtype=dtype))
    prefer_layout(model)
    memory = _account(model, settings)
    row_exact = _row_exact(settings, plan, checkpoint)
    scheduling = _grid(settings, plan).scheduler
    max_slice = _max_slice(scheduling, max_context, row_exact=row_exact)
    pool_plan = _plan_pools(layout, settings, dtype, max_context, max_slice, memory)
    if pool_plan.max_slice is not None and pool_plan.max_slice < max_slice:
        max_slice = pool_plan.max_slice
        scheduling = attrs.evolve(scheduling, long_prefill_tokens=max_slice)
    assembly = _Assembly(
        layout=layout,
        settings=settings,
        dtype=dtype,
        max_context=max_context,
        max_slice=max_slice,
        memory=memory,
        pool_plan=pool_plan,
    )
    paged = settings.cache.use_block_paged_cache
    paged = plan.paged if paged is None else paged
    lane = assembly.paged_lane() if paged else assembly.flat_lane()
    decision = decide_persistence(subject, settings.cold, paged=paged, gate=gate)
    tokenizer, protocol = _tokenizer(checkpoint), family.output_protocol(config)
    trace = Trace.from_settings(
        settings.telemetry.inference_trace, settings.telemetry.inference_trace_file
    )
    counters = SchedulerCounters()
    cold: EngineCold | None = None
    if decision.persist and isinstance(lane, PagedLane):
        opened = open_cold(
            subject, settings.cold, lane, counters=counters, trace=trace, may_spill=plan.spill
        )
        decision, cold = (
            (opened, None) if isinstance(opened, PersistDecision) else (decision, opened)
        )
    info = ModelInfo(
        source=source,
        family=family,
        config=config,
        model_type=subject.model_type,
        tokenizer=tokenizer,
        protocol=protocol,
        eos_token_ids=_eos_token_ids(tokenizer, protocol),
        settings=settings,
        max_context=max_context,
        vocab_size=shape.vocab_size,
        dtype=_name(dtype),
        lane="paged" if paged else "flat",
        row_exact=row_exact,
        weight_bytes=_num_bytes(model),
        initial_blocks=assembly.pool_plan.initial_blocks if paged else 0,
        effective_window_tokens=assembly.pool_plan.effective_window_tokens,
        persistence=decision,
    )
    _log_loaded(info, assembly.pool_plan)
    scheduler = Scheduler(
        scheduling,
        lane.cache,
        max_context=max_context,
        block_size=settings.cache.paged_block_size,
        row_exact=row_exact,
        counters=counters,
        cold=cold,
    )
    runner = Runner(family, model, layout, lane, row_exact=row_exact)
    journal = Journal(
        source,
        trace,
        _turn_log(settings),
        partial(cold_stats, cold),
        counters.decode_batch_occupancy_hist,
    )
    return Core(info, scheduler, runner, cold, journal)


def _turn_log(settings: Settings) -> TurnLog | None:
    directory = settings.telemetry.turn_log_dir
    return None if directory is None else TurnLog(Path(directory).expanduser())


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _plan_pools(
    layout: CacheLayout,
    settings: Settings,
    dtype: mx.Dtype,
    max_context: int,
    max_slice: int,
    memory: MemoryCoordinator,
) -> PoolPlan:
    cache = settings.cache
    return plan_pools(
        layout,
        block_size=cache.paged_block_size,
        itemsize=dtype.size,
        max_context_tokens=max_context,
        max_num_seqs=settings.scheduler.max_num_seqs,
        max_slice=max_slice,
        max_bytes=_mib(cache.paged_cache_memory_mb),
        initial_bytes=_mib(cache.paged_cache_initial_memory_mb),
        available_bytes=_available_bytes(cache, memory),
    )


def _max_slice(scheduler: SchedulerSettings, max_context: int, *, row_exact: bool) -> int:
    """Return the tokens of one sequence that a step computes at most.

    A row-exact slice is never cut by the budget.
    """
    slice_tokens = min(scheduler.prefill_chunk_size, scheduler.long_prefill_tokens)
    if not row_exact:
        slice_tokens = min(slice_tokens, scheduler.max_batched_tokens)
    return min(slice_tokens, max_context)


def _available_bytes(cache: CacheSettings, memory: MemoryCoordinator) -> int | None:
    """Return what the pools may take beside the weights: of the device, and of the cap."""
    bounds: list[int] = []
    available = device.available_bytes()
    if available is not None:
        bounds.append(max(0, available - int(cache.gpu_headroom_gb * GIB)))
    if memory.limit_bytes is not None:
        bounds.append(memory.limit_bytes - memory.total)
    return min(bounds, default=None)


@attrs.frozen(kw_only=True, eq=False)
class _Assembly:
    """Sizes and builds a lane."""

    layout: CacheLayout
    settings: Settings
    dtype: mx.Dtype
    max_context: int
    max_slice: int
    memory: MemoryCoordinator
    pool_plan: PoolPlan

    def _pool_bytes(self, group: int, num_blocks: int) -> int:
        size = self.settings.cache.paged_block_size
        return num_blocks * self.layout.block_bytes(group, size, self.dtype.size)

    def _pool(self, group: int) -> LayerPool:
        num_blocks = self.pool_plan.groups[group].initial_blocks
        self.memory.register(f"pool {group}", self._pool_bytes(group, num_blocks))
        return LayerPool(
            self.layout.groups[group],
            self.layout.num_group_layers(group),
            num_blocks,
            self.settings.cache.paged_block_size,
            self.dtype,
        )

    def paged_lane(self) -> PagedLane:
        """Return the lane of block-paged turns, its pools allocated."""
        size, plan = self.settings.cache.paged_block_size, self.pool_plan
        if plan.state_bytes:
            self.memory.register("recurrent states", plan.state_bytes)
        pools = [self._pool(group) for group in range(len(self.layout.groups))]

        def grow(group: int, num_blocks: int) -> None:
            self.memory.update(f"pool {group}", self._pool_bytes(group, num_blocks))
            pools[group].grow(num_blocks)

        # without a pool the blocks of one allocator still count tokens and name prefixes
        allocators = [
            BlockAllocator(group.initial_blocks, size, group.max_blocks)
            for group in plan.groups
        ]
        keeper = self._keeper() if self.layout.states else None
        return PagedLane(
            self.layout,
            pools,
            Coordinator(
                self.layout,
                allocators,
                grow if plan.dynamic else None,
                keeper,
                self.max_slice,
            ),
            block_size=size,
            max_num_seqs=self.settings.scheduler.max_num_seqs,
            max_context=self.max_context,
            keeper=keeper,
        )

    def _keeper(self) -> StateKeeper:
        """Return the keeper of states at boundaries, with the memory that it may take."""
        cache, available = self.settings.cache, device.available_bytes() or 0
        automatic = min(MAX_STATE_BYTES, available // 32)
        asked = cache.state_snapshot_memory_mb
        return StateKeeper(
            cache.paged_block_size,
            self.layout.state_bytes(self.dtype.size),
            max_bytes=automatic if asked is None else asked * MIB,
            root=cache.state_root_owner,
        )

    def flat_lane(self) -> FlatLane:
        """Return the lane of contiguous caches, with the paged one's budget."""
        cache = FlatCoordinator(
            self.pool_plan.max_blocks - 1, self.settings.cache.paged_block_size
        )
        return FlatLane(self.layout, cache)


def _settings(resolved: Resolved) -> Settings:
    for sentence in resolved.ignored:
        get_logger("loading").warning("loading.setting.ignored", reason=sentence)
    return resolved.settings


def _model_type(checkpoint: Checkpoint) -> str:
    model_type = checkpoint.config.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError("model_type", f"must be a string, got {model_type!r}")
    return model_type


def _compute_dtype(settings: Settings, checkpoint: Checkpoint) -> mx.Dtype:
    """Return the dtype to compute in: on a CPU, products in 16 bits are far slower."""
    if settings.model.dtype is not None:
        return getattr(mx, settings.model.dtype)
    if not device.is_gpu():
        return mx.float32
    return checkpoint.stored_dtype or mx.bfloat16


def _mib(num: int | None) -> int | None:
    return None if num is None else num * MIB


def _num_bytes(model: nn.Module) -> int:
    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))  # type: ignore[union-attr]


def _account(model: nn.Module, settings: Settings) -> MemoryCoordinator:
    """Return the account of the process's arrays, with the weights entered."""
    limit = settings.cache.cache_limit_gb
    memory = MemoryCoordinator(None if limit is None else int(limit * GIB))
    memory.register("weights", _num_bytes(model))
    return memory


def _row_exact(settings: Settings, plan: ExecutionPlan, checkpoint: Checkpoint) -> bool:
    if settings.scheduler.row_exact is not None:
        return settings.scheduler.row_exact
    quantised = checkpoint.weights.quantization is not None
    return plan.row_exact == "always" or (plan.row_exact == "quantized" and quantised)


def _grid(settings: Settings, plan: ExecutionPlan) -> Settings:
    """Return settings whose prefill grid respects the family's chunk."""
    if plan.prefill_chunk is None:
        return settings
    chunk = settings.scheduler.prefill_chunk_size
    multiple = max(plan.prefill_chunk, chunk // plan.prefill_chunk * plan.prefill_chunk)
    scheduler = attrs.evolve(settings.scheduler, prefill_chunk_size=multiple)
    return attrs.evolve(settings, scheduler=scheduler)


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    if checkpoint.gguf_metadata is not None:
        return gguf_tokenizer(checkpoint.gguf_metadata)
    return Tokenizer.from_directory(
        checkpoint.path,
        config=checkpoint.config,
        generation_config=checkpoint.generation_config or {},
    )


def _eos_token_ids(tokenizer: Tokenizer, protocol: OutputProtocol) -> frozenset[int]:
    """Return the ids that end an answer: the checkpoint's, and those the family knows of."""
    marks = (tokenizer.token_id(text) for text in protocol.end_of_turn)
    return tokenizer.eos_token_ids | {mark for mark in marks if mark is not None}


def _log_loaded(info: ModelInfo, plan: PoolPlan) -> None:
    log = get_logger("loading")
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
    if info.lane == "paged" and plan.dynamic:
        log.info(
            "loading.pool.dynamic",
            initial_blocks=plan.initial_blocks,
            max_blocks=plan.max_blocks,
        )
