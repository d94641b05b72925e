"""Prefixes on disk, written from and restored to what kernels read and write."""

from __future__ import annotations

from pathlib import Path

import pytest

import neve
from neve.testing.golden import read_goldens
from neve.testing.parity import num_certain

pytestmark = pytest.mark.gpu

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
NEW_TOKENS = 12


def answer(checkpoint: Path, ids: list[int], folder: Path) -> tuple[neve.Completion, int]:
    """Return what a model with a store answers, loaded anew, and how many objects were bad."""
    with neve.load(
        checkpoint,
        dtype="float32",
        paged_cache_memory_mb=64,
        persist_paged_cache=True,
        cold_cache_dir=str(folder),
    ) as model:
        model.wait_identified()
        done = model.generate(ids, max_tokens=NEW_TOKENS)
        model.flush()
        return done, model.stats().cold.corruptions


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5", "gemma4"])
def test_a_prefix_comes_back_after_a_restart(name: str, tmp_path: Path):
    """SD-1, PK-1: pages, a state and windows come back, and no token is another."""
    goldens = read_goldens(CHECKPOINTS / name)
    assert goldens is not None
    prompt = goldens.prompt("recall_long")
    first, _ = answer(CHECKPOINTS / name, list(prompt.ids), tmp_path)
    again, corruptions = answer(CHECKPOINTS / name, list(prompt.ids), tmp_path)
    certain = num_certain(prompt.f32.margins[:NEW_TOKENS])

    assert (first.usage.cached_tokens, corruptions) == (0, 0)
    assert again.usage.restored_tokens == again.usage.cached_tokens > 0
    assert again.tokens[:certain] == first.tokens[:certain]
