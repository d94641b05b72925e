"""Settings from keywords, config.json and the environment.

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

from ..errors import SettingsError, shown
from ..metal.runtime import switches
from ..structuring import strict_converter, structure
from .rooms import (
    CacheSettings,
    ColdSettings,
    ModelSettings,
    SchedulerSettings,
    Settings,
    TelemetrySettings,
)


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
