"""Settings: frozen values per room, structured from keywords, config.json and environment.

Precedence, highest first: environment variables marked "wins", keywords of `load` or a
`Settings` object, other environment variables, the checkpoint's config.json, the default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from attrs import validators

from .errors import SettingsError
from .structuring import strict_converter, structure

_positive = validators.ge(1)
_optional_positive = validators.optional(_positive)


@attrs.frozen(kw_only=True)
class CacheSettings:
    """The block-paged cache.

    Attributes:
        use_block_paged_cache: None leaves the choice to the family (on for all of them).
        paged_block_size: Tokens of a block.
        paged_cache_memory_mb: Most that the pools may take, in MiB; None means 2048.
        paged_cache_initial_memory_mb: What they take at load, in MiB; None means all of it.
        cache_limit_gb: Cap on weights and pools together, in GiB; None means no cap.
        gpu_headroom_gb: Memory that neve leaves free on the device, in GiB.
    """

    use_block_paged_cache: bool | None = None
    paged_block_size: int = attrs.field(default=16, validator=_positive)
    paged_cache_memory_mb: int | None = attrs.field(default=None, validator=_optional_positive)
    paged_cache_initial_memory_mb: int | None = attrs.field(
        default=None, validator=_optional_positive
    )
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
class Settings:
    """Everything that `load` can be told, one value a room."""

    cache: CacheSettings = attrs.field(factory=CacheSettings)
    scheduler: SchedulerSettings = attrs.field(factory=SchedulerSettings)
    model: ModelSettings = attrs.field(factory=ModelSettings)


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


@attrs.frozen
class EnvironmentVariable:
    """One variable that sets a field.

    Attributes:
        name: The variable.
        field: The field that it sets, unique over all rooms.
        parse: Text to value; a ValueError means that the variable is ignored and counted.
        wins: It overrides keywords and `Settings`; otherwise they override it.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    wins: bool = False


ENVIRONMENT = (
    EnvironmentVariable("MLX_BLOCK_PAGED_CACHE", "use_block_paged_cache", _parse_bool, True),
    EnvironmentVariable(
        "MLX_PAGED_CACHE_INITIAL_MB", "paged_cache_initial_memory_mb", _parse_count, True
    ),
    EnvironmentVariable("MLX_PAGED_CACHE_MEMORY_MB", "paged_cache_memory_mb", _parse_count),
    EnvironmentVariable("MLX_CACHE_LIMIT_GB", "cache_limit_gb", float),
    EnvironmentVariable("MLX_GPU_HEADROOM_GB", "gpu_headroom_gb", float),
    EnvironmentVariable("MLX_PAGED_PREFILL_CHUNK_SIZE", "prefill_chunk_size", _parse_count),
    EnvironmentVariable("MLX_SCHED_MAX_NUM_SEQS", "max_num_seqs", _parse_count),
    EnvironmentVariable("MLX_SCHED_MAX_BATCHED_TOKENS", "max_batched_tokens", _parse_count),
    EnvironmentVariable("MLX_SCHED_LONG_PREFILL_TOKENS", "long_prefill_tokens", _parse_count),
    EnvironmentVariable("MLX_SCHED_RESERVE_FULL_ISL", "reserve_full_prompt", _parse_bool),
    EnvironmentVariable("MLX_SCHED_WATERMARK_FRACTION", "watermark_fraction", float),
)

CONFIG_KEYS = (
    "use_block_paged_cache",
    "paged_block_size",
    "paged_cache_memory_mb",
    "paged_cache_initial_memory_mb",
)
"""Fields that a checkpoint's config.json may set."""

IGNORED_CONFIG_KEYS = ("use_paged_attention",)
"""Keys of a superseded path: accepted in config.json, reported as without effect."""


ROOMS: Mapping[str, type[Any]] = {
    "cache": CacheSettings,
    "scheduler": SchedulerSettings,
    "model": ModelSettings,
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


def _structure_rooms(merged: Mapping[str, Any]) -> Settings:
    """Return `Settings` of field values; names that are no field's are errors as well."""
    findings = _unknown(merged)
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
    environ: Mapping[str, str], *, wins: bool
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for variable in ENVIRONMENT:
        text = environ.get(variable.name, "")
        if variable.wins != wins or not text.strip():
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
        SettingsError: An unknown keyword, or a value of the wrong type or range.
    """
    keywords, config = keywords or {}, config or {}
    environ = os.environ if environ is None else environ
    soft, soft_ignored = _from_environment(environ, wins=False)
    hard, hard_ignored = _from_environment(environ, wins=True)
    ignored = soft_ignored + hard_ignored
    ignored += [
        f"config.json: {key} has no effect" for key in IGNORED_CONFIG_KEYS if key in config
    ]
    merged = {key: config[key] for key in CONFIG_KEYS if config.get(key) is not None}
    for layer in (soft, _given(settings or Settings()), keywords, hard):
        merged.update(layer)
    return Resolved(_structure_rooms(merged), tuple(ignored))
