"""Runs of real engines, replayed without arrays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

import neve
from neve.errors import CacheMisuseError
from neve.scheduler.plan import PlannedRow, StepPlan
from neve.testing.recorder import Recorder
from neve.testing.recording import Recording
from neve.testing.replay import Replay

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
FAMILIES = ["qwen3", "qwen3_5", "gemma4"]
"""Full attention, a hybrid with recurrent state, and sliding windows."""

Load = Callable[..., tuple[neve.Model, Recording]]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Load a tiny checkpoint and record what its engine does."""
    models: list[neve.Model] = []

    def make(family: str, **settings: Any) -> tuple[neve.Model, Recording]:
        options: dict[str, Any] = {"paged_cache_memory_mb": 16, "max_num_seqs": 4}
        model = neve.load(CHECKPOINTS / family, **(options | settings))
        models.append(model)
        if settings.get("persist_paged_cache"):
            model.wait_identified()
        return model, model._engine.call(Recorder).recording

    yield make
    for model in models:
        model.close()


def text(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(10, 1000), k=length)


def answer(model: neve.Model, prompts: Sequence[list[int]], length: int = 12) -> None:
    """Answer prompts at once."""
    options: dict[str, Any] = {"ignore_eos": True, "max_tokens": length}
    handles = [model.submit(prompt, **options) for prompt in prompts]
    for handle in handles:
        handle.result()


def prompts() -> list[list[int]]:
    """Prompts of which some begin alike, more than run at once."""
    head = text(40, 1)
    return [*(head + text(n, n) for n in (3, 17, 30, 9)), text(5, 2), text(70, 3)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recorded_run_replays_to_the_same_plans(load: Load, family: str) -> None:
    """ST-1: requests at once, prefixes found again, one cancelled; through JSON."""
    model, recording = load(family)
    answer(model, prompts())
    gone = model.submit(text(50, 7), max_tokens=400, ignore_eos=True)
    next(iter(gone))
    gone.cancel()
    answer(model, prompts())
    replay = Replay(Recording.from_json(recording.to_json()))

    assert replay.run() == recording.plans
    assert max(len(plan.rows) for plan in recording.plans) == 4
    found, pools = replay.simulator.cache.stats().prefix_hit_tokens, model.stats().pools
    assert pools is not None
    assert found == pools.prefix_hit_tokens > 0


def test_a_run_whose_cache_is_full_replays(load: Load) -> None:
    """ST-1: growth that memory allows, and preemptions."""
    model, recording = load(
        "qwen3",
        paged_cache_memory_mb=1,
        paged_cache_initial_memory_mb=1,
        max_context=512,
        reserve_full_prompt=False,
        watermark_fraction=0.0,
    )
    blocks = model.stats().scheduler.block_capacity
    length = blocks * 16 // 4
    answer(model, [text(length - 20, seed) for seed in range(6)], 80)

    assert any(plan.preempted for plan in recording.plans)
    assert Replay(recording).run() == recording.plans


@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_with_restores_replays(load: Load, tmp_path: Path, family: str) -> None:
    """ST-1: what the disk proposed and brought, and when, is part of a recording."""
    options: dict[str, Any] = {"persist_paged_cache": True, "cold_cache_dir": str(tmp_path)}
    first, _ = load(family, **options)
    answer(first, prompts())
    first.close()
    model, recording = load(family, **options)
    answer(model, prompts())

    assert model.stats().scheduler.ssd_restores > 0
    assert any(event[0] == "cold.advance" and event[1] for event in recording.events)
    assert Replay(recording).run() == recording.plans


def test_a_changed_call_does_not_replay_to_the_same_plans(load: Load) -> None:
    """ST-1: the comparison can fail."""
    model, recording = load("qwen3")
    answer(model, prompts())
    submitted = next(event for event in recording.events if event[0] == "submit")
    submitted[1]["tokens"] = submitted[1]["tokens"][:-20]

    with pytest.raises((AssertionError, CacheMisuseError)):
        assert Replay(recording).run() == recording.plans


def test_a_plan_of_every_kind_of_row_survives_json() -> None:
    """ST-1: drafts, tokens on the device, snapshots, table changes and victims."""
    rows = (
        PlannedRow(1, 4, 9, on_device=True, num_logits=1, blocks=(((2, 7),), ())),  # type: ignore[arg-type]
        PlannedRow(2, 5, 3, tokens=(8,), drafts=(1, 2), num_logits=3, snapshot="newest"),  # type: ignore[arg-type]
        PlannedRow(3, 6, 0, tokens=(1, 2, 3), snapshot="shared"),  # type: ignore[arg-type]
    )
    plan = StepPlan(rows)

    assert StepPlan.from_json(plan.to_json()) == plan
    assert [attrs.astuple(wave) for wave in plan.waves] == [(1, 1), (1, 3)]
