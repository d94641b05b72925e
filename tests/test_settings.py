from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.errors import SettingsError
from neve.settings import (
    CONFIG_KEYS,
    ENVIRONMENT,
    FIELD_ROOMS,
    ROOMS,
    CacheSettings,
    ColdSettings,
    EnvironmentVariable,
    ModelSettings,
    Resolved,
    SchedulerSettings,
    Settings,
    TelemetrySettings,
    resolve,
)

VARIABLES = {variable.field: variable for variable in ENVIRONMENT}
INITIAL = "MLX_PAGED_CACHE_INITIAL_MB"
ROLLBACK = "MLX_BLOCK_PAGED_CACHE"


def resolved(
    keywords: Mapping[str, Any] | None = None,
    *,
    settings: Settings | None = None,
    config: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Resolved:
    """Resolve without looking at the environment of the test run."""
    return resolve(settings, keywords, config, environ or {})


def value_of(result: Resolved, field: str) -> Any:
    return getattr(getattr(result.settings, FIELD_ROOMS[field]), field)


def findings_of(keywords: Mapping[str, Any], **sources: Any) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        resolved(keywords, **sources)
    return caught.value.findings


def test_nothing_given_is_the_defaults() -> None:
    """SC-1: eight turns, 2048 tokens a step, unless somebody says otherwise."""
    assert resolved() == Resolved(Settings(), ())
    assert SchedulerSettings().max_num_seqs == 8
    assert SchedulerSettings().max_batched_tokens == 2048


def test_field_names_are_unique_over_all_rooms() -> None:
    """A keyword names one field, so no two rooms share a name."""
    names = Counter(field.name for room in ROOMS.values() for field in attrs.fields(room))

    assert set(names.values()) == {1}
    assert set(FIELD_ROOMS) == set(names)


def test_every_source_names_real_fields() -> None:
    """What the environment and config.json may set are fields, each set by one variable."""
    assert set(VARIABLES) | set(CONFIG_KEYS) <= set(FIELD_ROOMS)
    assert len(VARIABLES) == len(ENVIRONMENT) == len({v.name for v in ENVIRONMENT})


@pytest.mark.parametrize("field", FIELD_ROOMS)
def test_a_keyword_sets_any_field(field: str) -> None:
    """Each field of each room can be given as a keyword."""
    values: dict[Any, Any] = {
        bool: False,
        bool | None: True,
        int: 7,
        int | None: 7,
        float: 0.5,
        float | None: 0.5,
        str | None: "float16",
        tuple[str, ...]: ("llama",),
    }
    fields = attrs.fields_dict(attrs.resolve_types(ROOMS[FIELD_ROOMS[field]]))
    value = values[fields[field].type]

    assert value_of(resolved({field: value}), field) == value


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({}, None),
        ({"config": 100}, 100),
        ({"config": None}, None),
        ({"settings": 200, "config": 100}, 200),
        ({"keyword": 300, "settings": 200, "config": 100}, 300),
        ({"keyword": 300, "settings": 200, "config": 100, "environ": "400"}, 400),
        ({"config": 100, "environ": "400"}, 400),
        ({"environ": " 400 "}, 400),
    ],
)
def test_the_environment_has_the_last_word_on_the_initial_pool(
    sources: dict[str, Any], expected: int | None
) -> None:
    """KV-6: MLX_PAGED_CACHE_INITIAL_MB wins over config.json, settings and keyword."""
    field = "paged_cache_initial_memory_mb"
    result = resolve(
        Settings(cache=CacheSettings(paged_cache_initial_memory_mb=sources.get("settings"))),
        {field: sources["keyword"]} if "keyword" in sources else {},
        {field: sources["config"]} if "config" in sources else {},
        {INITIAL: sources["environ"]} if "environ" in sources else {},
    )

    assert value_of(result, field) == expected
    assert result.ignored == ()


@pytest.mark.parametrize("text", ["lots", "16.9", "-5", "1e3", "0x10"])
def test_an_unreadable_initial_pool_is_ignored_and_reported(text: str) -> None:
    """KV-6: an unparseable variable falls back to config.json, and is reported."""
    config = {"paged_cache_initial_memory_mb": 100}
    result = resolved(config=config, environ={INITIAL: text})

    assert result.settings.cache.paged_cache_initial_memory_mb == 100
    assert result.ignored == (f"{INITIAL}={text!r} is not readable and is ignored",)


def test_an_empty_variable_is_not_set() -> None:
    """KV-6: a variable of blanks is neither a value nor worth a report."""
    assert resolved(environ={INITIAL: " ", ROLLBACK: ""}) == Resolved(Settings(), ())


@pytest.mark.parametrize("text", ["0", "false", "OFF", " no "])
def test_the_environment_rolls_back_to_the_flat_path(text: str) -> None:
    """KV-10: MLX_BLOCK_PAGED_CACHE=0 wins over an explicit true."""
    result = resolved({"use_block_paged_cache": True}, environ={ROLLBACK: text})

    assert result.settings.cache.use_block_paged_cache is False


@pytest.mark.parametrize("text", ["1", "true", "On", "yes"])
def test_the_environment_rolls_forward_as_well(text: str) -> None:
    """KV-10: the override works in both directions."""
    config = {"use_block_paged_cache": False}
    result = resolved(config=config, environ={ROLLBACK: text})

    assert result.settings.cache.use_block_paged_cache is True


def test_the_paged_path_is_the_familys_choice_unless_somebody_chooses() -> None:
    """KV-10: None, an explicit false and an explicit true are three things."""
    assert resolved().settings.cache.use_block_paged_cache is None
    for choice in (False, True):
        given = resolved(config={"use_block_paged_cache": choice})
        assert given.settings.cache.use_block_paged_cache is choice


def test_an_unreadable_rollback_is_reported() -> None:
    """KV-10: a typo in the override changes nothing and does not go unseen."""
    result = resolved(environ={ROLLBACK: "offf"})

    assert result.settings == Settings()
    assert result.ignored == (f"{ROLLBACK}='offf' is not readable and is ignored",)


@pytest.mark.parametrize("value", [True, False, None])
def test_the_superseded_path_is_reported_as_without_effect(value: Any) -> None:
    """KV-10: `use_paged_attention` in config.json is accepted and does nothing."""
    result = resolved(config={"use_paged_attention": value})

    assert result == Resolved(Settings(), ("config.json: use_paged_attention has no effect",))


def test_the_superseded_path_is_no_keyword() -> None:
    """KV-10: what has no effect cannot be asked for in code."""
    assert "use_paged_attention: unknown setting" in findings_of({"use_paged_attention": 1})[0]


@pytest.mark.parametrize(
    ("name", "field", "text", "expected"),
    [
        ("MLX_SCHED_MAX_NUM_SEQS", "max_num_seqs", "4", 4),
        ("MLX_SCHED_MAX_BATCHED_TOKENS", "max_batched_tokens", "512", 512),
        ("MLX_SCHED_LONG_PREFILL_TOKENS", "long_prefill_tokens", "512", 512),
        ("MLX_SCHED_WATERMARK_FRACTION", "watermark_fraction", "0.25", 0.25),
        ("MLX_PAGED_PREFILL_CHUNK_SIZE", "prefill_chunk_size", "64", 64),
        ("MLX_PAGED_CACHE_MEMORY_MB", "paged_cache_memory_mb", "64", 64),
        ("MLX_CACHE_LIMIT_GB", "cache_limit_gb", "1.5", 1.5),
        ("MLX_GPU_HEADROOM_GB", "gpu_headroom_gb", "0", 0.0),
    ],
)
def test_other_variables_yield_to_keywords(
    name: str, field: str, text: str, expected: float
) -> None:
    """SC-1: a variable sets its field; a keyword, or a `Settings` object, overrides it."""
    environ, room = {name: text}, FIELD_ROOMS[field]
    other = 0.5 if field == "watermark_fraction" else 3
    settings = Settings(**{room: ROOMS[room](**{field: other})})

    assert value_of(resolved(environ=environ), field) == expected
    assert value_of(resolved({field: other}, environ=environ), field) == other
    assert value_of(resolved(settings=settings, environ=environ), field) == other


@pytest.mark.parametrize(("text", "expected"), [("0", False), ("1", True)])
def test_the_environment_chooses_how_prompts_are_reserved(text: str, expected: bool) -> None:
    """SC-1: MLX_SCHED_RESERVE_FULL_ISL is a switch; a keyword overrides it."""
    environ = {"MLX_SCHED_RESERVE_FULL_ISL": text}
    opposite = resolved({"reserve_full_prompt": not expected}, environ=environ)

    assert resolved(environ=environ).settings.scheduler.reserve_full_prompt is expected
    assert opposite.settings.scheduler.reserve_full_prompt is not expected


def test_a_default_in_a_settings_object_counts_as_not_given() -> None:
    """SC-1: a `Settings` object overrides the environment where it differs from the default."""
    environ = {"MLX_SCHED_MAX_NUM_SEQS": "4"}
    settings = Settings(scheduler=SchedulerSettings(max_num_seqs=8))

    assert resolved(settings=settings, environ=environ).settings.scheduler.max_num_seqs == 4
    assert resolved({"max_num_seqs": 8}, environ=environ).settings.scheduler.max_num_seqs == 8


def test_a_soft_variable_beats_the_checkpoint() -> None:
    """The environment stands between the caller and config.json."""
    config = {"paged_cache_memory_mb": 100}
    result = resolved(config=config, environ={"MLX_PAGED_CACHE_MEMORY_MB": "200"})

    assert result.settings.cache.paged_cache_memory_mb == 200


ANY_TEXT = {
    "cold_cache_dir",
    "cold_evidence_dir",
    "turn_log_dir",
    "inference_trace_file",
    "certified_families",
}


@pytest.mark.parametrize(
    "variable", [v for v in ENVIRONMENT if v.field not in ANY_TEXT], ids=lambda v: v.name
)
def test_an_unreadable_variable_is_ignored_and_reported(variable: EnvironmentVariable) -> None:
    """SC-1: no variable can break a start by being unreadable, and none is dropped unseen."""
    result = resolved(environ={variable.name: "?"})

    assert result.settings == Settings()
    assert result.ignored == (f"{variable.name}='?' is not readable and is ignored",)


def test_a_checkpoint_beats_a_variable_that_yields() -> None:
    """CT-1: what a checkpoint says about persistence goes before the environment."""
    environ = {"MLX_PERSIST_PAGED_CACHE": "1"}

    assert resolved(environ=environ).settings.cold.persist_paged_cache is True
    config = {"persist_paged_cache": False}
    result = resolved(config=config, environ=environ)
    assert result.settings.cold.persist_paged_cache is False
    assert resolved({"persist_paged_cache": True}, config=config).settings.cold == attrs.evolve(
        ColdSettings(), persist_paged_cache=True
    )


def test_names_in_a_variable_are_separated_by_commas() -> None:
    """FW-5: families can be trusted by name from the environment."""
    environ = {"MLX_COLD_CERTIFIED_FAMILIES": "llama, mistral,"}

    assert resolved(environ=environ).settings.cold.certified_families == ("llama", "mistral")


def test_a_readable_but_impossible_variable_is_an_error() -> None:
    """SC-1: 32 turns at most, whoever asks for more."""
    assert findings_of({}, environ={"MLX_SCHED_MAX_NUM_SEQS": "64"}) == (
        "scheduler.max_num_seqs: must be <= 32: 64",
    )


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """SC-1: without an explicit environment the process's own counts."""
    monkeypatch.setenv("MLX_SCHED_MAX_NUM_SEQS", "3")

    assert resolve().settings.scheduler.max_num_seqs == 3


def test_config_sets_only_what_it_may() -> None:
    """A checkpoint does not choose its user's batching, whatever its config.json says."""
    result = resolved(config={"max_num_seqs": 1, "dtype": "float16", "paged_block_size": 32})

    assert result.settings == Settings(cache=CacheSettings(paged_block_size=32))


def test_all_wrong_values_come_in_one_error() -> None:
    """Every finding is in the one error: unknown, mistyped and out of range, with its path."""
    findings = findings_of(
        {
            "blok": 1,
            "paged_blok_size": 16,
            "paged_block_size": 0,
            "paged_cache_memory_mb": -1,
            "cache_limit_gb": "2",
            "max_num_seqs": True,
            "watermark_fraction": 1.0,
            "dtype": "float8",
            "max_context": 16.9,
        }
    )

    assert [finding.partition(":")[0] for finding in findings] == [
        "blok",
        "paged_blok_size",
        "cache.paged_block_size",
        "cache.paged_cache_memory_mb",
        "cache.cache_limit_gb",
        "scheduler.max_num_seqs",
        "scheduler.watermark_fraction",
        "model.dtype",
        "model.max_context",
    ]
    assert "did you mean paged_block_size?" in findings[1]
    assert findings[2] == "cache.paged_block_size: must be >= 1: 0"
    assert findings[-1] == "model.max_context: must be an integer, got 16.9"


def test_the_error_is_a_value_error_with_all_its_sentences() -> None:
    """A caller who expects ValueError gets one; its text holds every finding."""
    with pytest.raises(ValueError, match=r"cache\.paged_block_size.*; model\.dtype") as caught:
        resolved({"paged_block_size": 0, "dtype": "x"})

    assert isinstance(caught.value, SettingsError)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("paged_block_size", 16.9),
        ("paged_block_size", 16.0),
        ("paged_block_size", True),
        ("paged_block_size", "16"),
        ("paged_cache_memory_mb", False),
        ("use_block_paged_cache", 1),
        ("use_block_paged_cache", "true"),
        ("row_exact", 0),
        ("gpu_headroom_gb", True),
        ("gpu_headroom_gb", "1"),
        ("gpu_headroom_gb", None),
        ("cache_limit_gb", float("inf")),
        ("gpu_headroom_gb", float("nan")),
        ("revision", 7),
    ],
)
def test_no_value_is_taken_for_another(field: str, value: Any) -> None:
    """16.9 and True are no integers, 1 is no bool, infinity is no size."""
    (finding,) = findings_of({field: value})

    assert finding.startswith(f"{FIELD_ROOMS[field]}.{field}: must be ")
    assert finding.endswith(repr(value))


def test_a_settings_object_is_checked_as_keywords_are() -> None:
    """A mistyped value that the constructor let through does not reach the engine."""
    settings = Settings(cache=CacheSettings(paged_block_size=16.9))  # type: ignore[arg-type]

    assert findings_of({}, settings=settings) == (
        "cache.paged_block_size: must be an integer, got 16.9",
    )


def test_a_checkpoint_with_a_wrong_value_is_refused() -> None:
    """config.json is checked as keywords are."""
    config = {"paged_block_size": "16", "paged_cache_memory_mb": 0}

    assert len(findings_of({}, config=config)) == 2


@settings(deadline=None)
@given(
    st.builds(
        Settings,
        cache=st.builds(
            CacheSettings,
            use_block_paged_cache=st.none() | st.booleans(),
            paged_block_size=st.integers(1, 64),
            paged_cache_memory_mb=st.none() | st.integers(1, 4096),
            gpu_headroom_gb=st.floats(0, 8),
        ),
        scheduler=st.builds(
            SchedulerSettings,
            max_num_seqs=st.integers(1, 32),
            watermark_fraction=st.floats(0, 0.99),
            row_exact=st.none() | st.booleans(),
        ),
        model=st.builds(ModelSettings, dtype=st.sampled_from([None, "float16"])),
        cold=st.builds(
            lambda persist, quota, families: ColdSettings(
                persist_paged_cache=persist, cold_quota_gb=quota, certified_families=families
            ),
            st.none() | st.booleans(),
            st.none() | st.floats(0, 8),
            st.lists(st.text(max_size=4)).map(tuple),
        ),
        telemetry=st.builds(TelemetrySettings, inference_trace=st.booleans()),
    )
)
def test_valid_settings_resolve_to_themselves(settings: Settings) -> None:
    """What a caller built is what the engine gets."""
    assert resolved(settings=settings) == Resolved(settings, ())


@pytest.mark.parametrize("variable", ["NEVE_KERNELS", "NEVE_FUSE"])
def test_an_unknown_value_of_a_switch_is_an_error(variable: str) -> None:
    """UX-2: a typing error does not run a model in another way than was asked for."""
    with pytest.raises(SettingsError) as caught:
        resolved({"max_num_sequences": 1}, environ={variable: "offf"})

    assert caught.value.findings[0] == f"{variable}: must be on or off, got 'offf'"
    assert "max_num_sequences" in caught.value.findings[1]
    assert resolved(environ={variable: "off"}) == Resolved(Settings(), ())
