"""A store that was pruned or ran full: what is left of a prompt can come back."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import neve
from neve.coldtier.objects.keys import ColdGroup
from neve.coldtier.transfer.cost import CostModel

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
BLOCK = 16
FAMILIES = ["qwen3", "lfm2", "qwen3_5", "nemotron_h", "gemma4", "muse_glimmer"]
"""Full attention, three kinds of recurrent layer, two of window."""

Open = Callable[..., neve.Model]


@pytest.fixture(autouse=True)
def _always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore what is there, however busy the machine is."""
    monkeypatch.setattr(CostModel, "restore_pays", lambda *_: True)


@pytest.fixture
def cold(family: str, tmp_path: Path) -> Iterator[Open]:
    """Load with a cold tier in a folder of the test's own: another process, so to say."""
    models: list[neve.Model] = []

    def make(**settings: Any) -> neve.Model:
        options: dict[str, Any] = {
            "dtype": "float32",
            "paged_cache_memory_mb": 32,
            "persist_paged_cache": True,
            "cold_cache_dir": str(tmp_path),
            "cold_min_free_gb": 0.0,
        }
        models.append(neve.load(CHECKPOINTS / family, **(options | settings)))
        models[-1].wait_identified()
        return models[-1]

    yield make
    for model in models:
        model.close()


def text(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(10, 1000), k=length)


def num_blocks(store: neve.ColdStoreHandle) -> int:
    return sum(entry.name.group is ColdGroup.KV for entry in store.objects())


@pytest.mark.parametrize("percent", [90, 50, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_block_that_prune_leaves_comes_back(
    cold: Open, family: str, tmp_path: Path, percent: int
) -> None:
    """KV-4, CT-12: by kind of family; a block whose state is gone went with it."""
    prompt = text(400, 1)
    with cold() as model:
        model.generate(prompt, max_tokens=1)
        model.flush()
    with neve.cold_store(tmp_path) as store:
        total = sum(entry.num_bytes for entry in store.objects())
        store.prune(total * percent // 100)
        kept = num_blocks(store)
        assert sum(entry.num_bytes for entry in store.objects()) <= total * percent // 100
    with cold() as model:
        done = model.generate(prompt, max_tokens=1)

    # Gemma 4 keeps one window of a prompt this short: without it nothing is of use
    assert kept > 0 or (family, percent) == ("gemma4", 20)
    assert done.usage.restored_tokens == kept * BLOCK


@pytest.mark.parametrize("family", FAMILIES)
def test_every_block_under_a_quota_comes_back(cold: Open, tmp_path: Path) -> None:
    """KV-4, CT-7: a store too small for all prompts gives the newest ones back whole."""
    prompts = [text(200, seed) for seed in range(4)]
    with cold() as model:
        model.generate(prompts[0], max_tokens=1)
        model.flush()
    with neve.cold_store(tmp_path) as store:
        one = sum(entry.num_bytes for entry in store.objects())
    with cold(cold_quota_gb=2.4 * one / 2**30) as model:
        for prompt in prompts[1:]:
            model.generate(prompt, max_tokens=1)
            model.flush()
        assert model.stats().cold.evictions > 0
    with cold(cold_daily_write_gb=0.0) as model:
        restored = [model.generate(p, max_tokens=1).usage.restored_tokens for p in prompts]

    assert restored[2:] == [192, 192]
