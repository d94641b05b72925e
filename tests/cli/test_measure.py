"""What the quick benchmark measures."""

from __future__ import annotations

import random

import pytest

from neve.cli.measure import Speeds, Workload, medians, run_round
from neve.errors import ContextLengthExceededError


def make_speeds(value):
    return Speeds(
        prefill_tokens_per_s=value,
        decode_tokens_per_s=value,
        batch_tokens_per_s=3 * value,
        cold_ttft_ms=10 * value,
        warm_ttft_ms=value,
    )


def make_workload(**fields):
    return Workload(**{"prompt_tokens": 64, "new_tokens": 4, "requests": 3, **fields})


def test_medians_are_taken_figure_by_figure():
    """PK-3: an outlier does not move a figure."""
    assert medians([make_speeds(1.0), make_speeds(100.0), make_speeds(2.0)]) == make_speeds(2.0)


def test_ratios():
    """PK-3: batching and prefix hits are told as ratios."""
    speeds = make_speeds(2.0)

    assert (speeds.batch_speedup, speeds.prefix_speedup) == (3.0, 10.0)


@pytest.mark.mlx
def test_round_runs_the_workload(model):
    """PK-3: the second prompt finds all of the first but the suffix; nothing else is found."""
    before = model.stats()
    speeds = run_round(model, make_workload(), random.Random(1))
    after = model.stats()

    assert after.scheduler.completed - before.scheduler.completed == 2 + 1 + 3
    assert after.pools.prefix_hit_tokens - before.pools.prefix_hit_tokens == 48
    assert min(speeds.prefill_tokens_per_s, speeds.batch_tokens_per_s) > 0


@pytest.mark.mlx
def test_prompts_that_do_not_fit(model):
    """PK-3: a workload that the model cannot take is refused."""
    with pytest.raises(ContextLengthExceededError):
        run_round(model, make_workload(prompt_tokens=5000), random.Random(1))
