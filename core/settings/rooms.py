"""Settings as frozen values, one class a room."""

from __future__ import annotations

from typing import Any

import attrs
from attrs import validators

from ..arguments import path_fault

_positive = validators.ge(1)


@attrs.frozen
class _Path:
    """Validates the text of a path."""

    def __call__(self, _: Any, field: attrs.Attribute[Any], value: str | None) -> None:
        fault = None if value is None else path_fault(value)
        if fault:
            raise ValueError(f"'{field.name}' must be a path, and {fault}")


_optional_positive = validators.optional(_positive)


@attrs.frozen(kw_only=True)
class CacheSettings:
    """The block-paged cache.

    Attributes:
        use_block_paged_cache: None leaves the choice to the family (on for all of them).
        paged_block_size: Tokens of a block.
        paged_cache_memory_mb: Most that the pools may take, in MiB; None means 2048, or with
            windows what one request of the longest context takes if that is more.
        paged_cache_initial_memory_mb: What they take at load, in MiB; None means all of it.
        state_snapshot_memory_mb: States of recurrent layers that are kept for later turns may
            take so much, in MiB; 0 keeps a handful whatever they take; None means a
            thirty-second of the machine's memory, at most 2048.
        state_root_owner: Owner of the root session, whose last state is given up last.
        cache_limit_gb: Cap on weights, pools and states of recurrent layers together, in GiB;
            None means no cap.
        gpu_headroom_gb: Memory that neve leaves free on the device, in GiB.
    """

    use_block_paged_cache: bool | None = None
    paged_block_size: int = attrs.field(default=16, validator=_positive)
    paged_cache_memory_mb: int | None = attrs.field(default=None, validator=_optional_positive)
    paged_cache_initial_memory_mb: int | None = attrs.field(
        default=None, validator=_optional_positive
    )
    state_snapshot_memory_mb: int | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(0))
    )
    state_root_owner: str | None = None
    cache_limit_gb: float | None = attrs.field(
        default=None, validator=validators.optional(validators.gt(0))
    )
    gpu_headroom_gb: float = attrs.field(default=1.0, validator=validators.ge(0))


MAX_NUM_SEQS_LIMIT = 32


@attrs.frozen(kw_only=True)
class SchedulerSettings:
    """Batching.

    Attributes:
        max_num_seqs: Turns that run at once, at most 32.
        max_batched_tokens: Tokens that one step may compute.
        prefill_chunk_size: Prefill cuts lie on multiples of this many tokens.
        long_prefill_tokens: One turn's prefill takes at most this many tokens of a step.
        reserve_full_prompt: Admit a turn when its whole prompt has room; else when its first
            slice has, at the price of preemptions.
        watermark_fraction: Share of the blocks that admission leaves free while others run.
        row_exact: Decode rows one at a time, bit-identical to a serial run; None leaves the
            choice to the family and the checkpoint.
    """

    max_num_seqs: int = attrs.field(
        default=8, validator=[_positive, validators.le(MAX_NUM_SEQS_LIMIT)]
    )
    max_batched_tokens: int = attrs.field(default=2048, validator=_positive)
    prefill_chunk_size: int = attrs.field(default=2048, validator=_positive)
    long_prefill_tokens: int = attrs.field(default=2048, validator=_positive)
    reserve_full_prompt: bool = True
    watermark_fraction: float = attrs.field(
        default=0.05, validator=[validators.ge(0), validators.lt(1)]
    )
    row_exact: bool | None = None


DTYPES = ("float32", "float16", "bfloat16")


@attrs.frozen(kw_only=True)
class ModelSettings:
    """The model itself.

    Attributes:
        dtype: Compute dtype; None means float32 on a CPU, the checkpoint's on a GPU.
        max_context: Lowers the model's context, in tokens.
        revision: Branch, tag or commit of a hub repository.
    """

    dtype: str | None = attrs.field(
        default=None, validator=validators.optional(validators.in_(DTYPES))
    )
    max_context: int | None = attrs.field(default=None, validator=_optional_positive)
    revision: str | None = None


@attrs.frozen(kw_only=True)
class ColdSettings:
    """The cold tier.

    Attributes:
        persist_paged_cache: Write prefixes to disk and restore them, if the family may; None
            leaves the choice to the environment, and without it to off.
        cold_cache_dir: Folder in which the store `neve-cold-v1` lies; None means the
            platform's cache folder.
        cold_quota_gb: What the store may take, in GiB; None means a tenth of the file
            system, at most 100.
        cold_min_free_gb: What it leaves free on the file system, in GiB; None means a
            twentieth, at least 5.
        cold_daily_write_gb: What is written in a day at most, in GiB; None means no cap.
        cold_capture_blocks_per_turn: Blocks that one turn writes at most.
        cold_capture_budget_ms: Time that one turn's writing may take from other turns, in
            milliseconds; when nothing else runs, and while the disk works, nobody waits.
        cold_drain_timeout_s: How long `close` waits for the disk, in seconds.
        certified_families: Families outside the core's list whose evidence is trusted.
        cold_evidence_dir: Folder of the evidence; None means the platform's folder for
            settings.
    """

    persist_paged_cache: bool | None = None
    cold_cache_dir: str | None = attrs.field(default=None, validator=_Path())
    cold_quota_gb: float | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(0))
    )
    cold_min_free_gb: float | None = attrs.field(
        default=None, validator=validators.optional(validators.ge(0))
    )
    cold_daily_write_gb: float | None = attrs.field(
        default=100.0, validator=validators.optional(validators.ge(0.0))
    )
    cold_capture_blocks_per_turn: int = attrs.field(default=128, validator=validators.ge(0))
    cold_capture_budget_ms: float = attrs.field(default=250.0, validator=validators.ge(0))
    cold_drain_timeout_s: float = attrs.field(default=10.0, validator=validators.ge(0))
    certified_families: tuple[str, ...] = ()
    cold_evidence_dir: str | None = attrs.field(default=None, validator=_Path())


@attrs.frozen(kw_only=True)
class TelemetrySettings:
    """What is written down about the work.

    Attributes:
        turn_log_dir: Folder for one line of JSON a turn; None writes none.
        inference_trace: Write trace events.
        inference_trace_file: File to append them to; None means stderr.
    """

    turn_log_dir: str | None = attrs.field(default=None, validator=_Path())
    inference_trace: bool = False
    inference_trace_file: str | None = attrs.field(default=None, validator=_Path())


@attrs.frozen(kw_only=True)
class Settings:
    """Everything that `load` can be told, one value a room."""

    cache: CacheSettings = attrs.field(factory=CacheSettings)
    scheduler: SchedulerSettings = attrs.field(factory=SchedulerSettings)
    model: ModelSettings = attrs.field(factory=ModelSettings)
    cold: ColdSettings = attrs.field(factory=ColdSettings)
    telemetry: TelemetrySettings = attrs.field(factory=TelemetrySettings)
