"""Settings: frozen values per room, structured from keywords, config.json and environment.

Precedence, highest first: environment variables marked "wins", keywords of `load` or a
`Settings` object, other environment variables, the checkpoint's config.json, environment
variables marked "yields", the default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import attrs
from attrs import validators

from .arguments import path_fault
from .errors import SettingsError, shown
from .metal.runtime import switches
from .structuring import strict_converter, structure

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


def _parse_bool(text: str) -> bool:
    value = {"1": True, "true": True, "on": True, "yes": True}.get(text.strip().lower())
    if value is None and text.strip().lower() in {"0", "false", "off", "no"}:
        value = False
    if value is None:
        raise ValueError(text)
    return value


def _parse_count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@attrs.frozen
class EnvironmentVariable:
    """One variable that sets a field.

    Attributes:
        name: The variable.
        field: The field that it sets, unique over all rooms.
        parse: Text to value; a ValueError means that the variable is ignored and counted.
        rank: What it overrides: `wins` everything, `normal` config.json and the default,
            `yields` the default only.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    rank: Literal["wins", "normal", "yields"] = "normal"


ENVIRONMENT = (
    EnvironmentVariable("MLX_BLOCK_PAGED_CACHE", "use_block_paged_cache", _parse_bool, "wins"),
    EnvironmentVariable(
        "MLX_PAGED_CACHE_INITIAL_MB", "paged_cache_initial_memory_mb", _parse_count, "wins"
    ),
    EnvironmentVariable("MLX_PAGED_CACHE_MEMORY_MB", "paged_cache_memory_mb", _parse_count),
    EnvironmentVariable("MLX_STATE_CHECKPOINT_MB", "state_snapshot_memory_mb", _parse_count),
    EnvironmentVariable("MLX_CACHE_LIMIT_GB", "cache_limit_gb", float),
    EnvironmentVariable("MLX_GPU_HEADROOM_GB", "gpu_headroom_gb", float),
    EnvironmentVariable("MLX_PAGED_PREFILL_CHUNK_SIZE", "prefill_chunk_size", _parse_count),
    EnvironmentVariable("MLX_SCHED_MAX_NUM_SEQS", "max_num_seqs", _parse_count),
    EnvironmentVariable("MLX_SCHED_MAX_BATCHED_TOKENS", "max_batched_tokens", _parse_count),
    EnvironmentVariable("MLX_SCHED_LONG_PREFILL_TOKENS", "long_prefill_tokens", _parse_count),
    EnvironmentVariable("MLX_SCHED_RESERVE_FULL_ISL", "reserve_full_prompt", _parse_bool),
    EnvironmentVariable("MLX_SCHED_WATERMARK_FRACTION", "watermark_fraction", float),
    EnvironmentVariable(
        "MLX_PERSIST_PAGED_CACHE", "persist_paged_cache", _parse_bool, "yields"
    ),
    EnvironmentVariable("MLX_COLD_CACHE_DIR", "cold_cache_dir", str),
    EnvironmentVariable("MLX_COLD_QUOTA_GB", "cold_quota_gb", float),
    EnvironmentVariable("MLX_COLD_MIN_FREE_GB", "cold_min_free_gb", float),
    EnvironmentVariable("MLX_COLD_DAILY_WRITE_GB", "cold_daily_write_gb", float),
    EnvironmentVariable(
        "MLX_COLD_CAPTURE_BLOCKS_PER_TURN", "cold_capture_blocks_per_turn", _parse_count
    ),
    EnvironmentVariable("MLX_COLD_CAPTURE_BUDGET_MS", "cold_capture_budget_ms", float),
    EnvironmentVariable("MLX_COLD_CERTIFIED_FAMILIES", "certified_families", _parse_names),
    EnvironmentVariable("MLX_COLD_EVIDENCE_DIR", "cold_evidence_dir", str),
    EnvironmentVariable("MLX_TURN_LOG_DIR", "turn_log_dir", str),
    EnvironmentVariable("MLX_INFERENCE_TRACE", "inference_trace", _parse_bool),
    EnvironmentVariable("MLX_INFERENCE_TRACE_FILE", "inference_trace_file", str),
)

CONFIG_KEYS = (
    "use_block_paged_cache",
    "paged_block_size",
    "paged_cache_memory_mb",
    "paged_cache_initial_memory_mb",
    "persist_paged_cache",
)
"""Fields that a checkpoint's config.json may set."""

IGNORED_CONFIG_KEYS = ("use_paged_attention",)
"""Keys of a superseded path: accepted in config.json, reported as without effect."""


ROOMS: Mapping[str, type[Any]] = {
    "cache": CacheSettings,
    "scheduler": SchedulerSettings,
    "model": ModelSettings,
    "cold": ColdSettings,
    "telemetry": TelemetrySettings,
}
FIELD_ROOMS: Mapping[str, str] = {
    field.name: room for room, cls in ROOMS.items() for field in attrs.fields(cls)
}
"""Field -> its room; field names are unique over all rooms."""


_CONVERTER = strict_converter(forbid_extra_keys=True)


def _given(settings: Settings) -> dict[str, Any]:
    """Return the fields that differ from their defaults: those that somebody set."""
    given: dict[str, Any] = {}
    for room, cls in ROOMS.items():
        values, defaults = getattr(settings, room), cls()
        for field in attrs.fields(cls):
            value = getattr(values, field.name)
            if value != getattr(defaults, field.name):
                given[field.name] = value
    return given


def _unknown(keywords: Mapping[str, Any]) -> list[str]:
    findings: list[str] = []
    for key in keywords:
        if key not in FIELD_ROOMS:
            near = difflib.get_close_matches(key, FIELD_ROOMS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FIELD_ROOMS)}"
            findings.append(f"{key}: unknown setting; {hint}")
    return findings


def _structure_rooms(merged: Mapping[str, Any], faults: Sequence[str]) -> Settings:
    """Return `Settings` of field values; unknown names and `faults` found before are errors."""
    findings = [*faults, *_unknown(merged)]
    nested: dict[str, dict[str, Any]] = {room: {} for room in ROOMS}
    for key, room in FIELD_ROOMS.items():
        if key in merged:
            nested[room][key] = merged[key]
    try:
        settings = structure(nested, Settings, _CONVERTER)
    except SettingsError as error:
        raise SettingsError([*findings, *error.findings]) from error
    if findings:
        raise SettingsError(findings)
    return settings


@attrs.frozen
class Resolved:
    """Settings, and what was passed over on the way.

    Attributes:
        settings: The result.
        ignored: Sentences about variables and keys that had no effect.
    """

    settings: Settings
    ignored: tuple[str, ...]


def _from_environment(
    environ: Mapping[str, str], rank: str
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for variable in ENVIRONMENT:
        text = environ.get(variable.name, "")
        if variable.rank != rank or not text.strip():
            continue
        try:
            values[variable.field] = variable.parse(text)
        except ValueError:
            ignored.append(f"{variable.name}={text!r} is not readable and is ignored")
    return values, ignored


def resolve(
    settings: Settings | None = None,
    keywords: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Merge all sources into one `Settings`.

    Args:
        settings: What the caller built; fields equal to their default count as not given.
        keywords: Field names of any room; they override `settings`.
        config: The checkpoint's config.json; only `CONFIG_KEYS` are read.
        environ: The environment; None means the process's.

    Raises:
        SettingsError: An unknown keyword, a value of the wrong type or range, or an unknown
            value of a switch in the environment such as `NEVE_KERNELS`.
    """
    if settings is not None and not issubclass(type(cast("object", settings)), Settings):
        raise SettingsError([f"settings: must be a Settings, got {shown(settings)}"])
    keywords, config = keywords or {}, config or {}
    environ = os.environ if environ is None else environ
    yielding, normal, winning = (
        _from_environment(environ, rank) for rank in ("yields", "normal", "wins")
    )
    ignored = [*yielding[1], *normal[1], *winning[1]]
    ignored += [
        f"config.json: {key} has no effect" for key in IGNORED_CONFIG_KEYS if key in config
    ]
    configured = {key: config[key] for key in CONFIG_KEYS if config.get(key) is not None}
    merged = dict(yielding[0])
    for layer in (configured, normal[0], _given(settings or Settings()), keywords, winning[0]):
        merged.update(layer)
    settings = _structure_rooms(merged, switches.faults(environ))
    return Resolved(settings, tuple(ignored))
