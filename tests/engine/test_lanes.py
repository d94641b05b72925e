"""Requests of a recurrent model on both lanes, driven as the loop drives them."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import toy_bench
from toy_bench import MakeLane, ToyFamily, flat, make_bench, paged

from neve.contract.cache_spec import CacheLayout
from neve.contract.forward import FINAL
from neve.engine import runner
from neve.engine.lanes import PagedLane
from neve.engine.runner import Runner

pytestmark = pytest.mark.mlx

LAYOUTS = {kind: toy_bench.LAYOUTS[kind] for kind in ("hybrid", "recurrent")}
PROMPTS = [[5], [1, 2, 3, 4, 5, 6, 7], [9, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [1, 2, 3]]
MAX_TOKENS = [20, 9, 30, 14, 3]


def expected(layout: CacheLayout) -> dict[int, list[int]]:
    """Return each request's tokens, computed alone and without any cache."""
    family: Any = ToyFamily(layout)
    alone = Runner(family, nn.Module(), layout, flat(layout, 2), row_exact=False)
    answers: dict[int, list[int]] = {}
    for i, (prompt, max_tokens) in enumerate(zip(PROMPTS, MAX_TOKENS, strict=True)):
        answers[i] = list(prompt)
        for _ in range(max_tokens):
            answers[i].append(int(np.argmax(alone.evaluate(answers[i])[-1])))
    return answers


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("make_lane", [paged, flat])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="roomy"),
        pytest.param({"max_batched_tokens": 3, "prefill_chunk_size": 2}, id="small slices"),
        pytest.param({"row_exact": True}, id="row exact"),
        pytest.param(
            {"num_blocks": 13, "reserve_full_prompt": False, "watermark_fraction": 0.0},
            id="preempted",
        ),
    ],
)
def test_turns_that_share_steps_answer_as_if_alone(
    layout: CacheLayout,
    make_lane: MakeLane,
    options: dict[str, Any],
) -> None:
    """GR-5: batched, sliced, preempted, one step ahead: each request has a state of its own."""
    bench = make_bench(layout, make_lane, **options)
    for prompt, max_tokens in zip(PROMPTS, MAX_TOKENS, strict=True):
        bench.submit(prompt, max_tokens)

    assert bench.run() == expected(layout)
    assert (bench.scheduler.counters.preemptions > 0) == ("num_blocks" in options)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("num_blocks", [65, 13])
def test_traced_steps_answer_as_if_alone(
    layout: CacheLayout,
    num_blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GR-5, PK-1: rows come, go and are preempted; states pass from traces to slices."""
    monkeypatch.setattr(runner, "launch", SimpleNamespace(builds_graphs=lambda: True))
    bench = make_bench(
        layout, num_blocks=num_blocks, reserve_full_prompt=False, watermark_fraction=0.0
    )
    for prompt, max_tokens in zip(PROMPTS, MAX_TOKENS, strict=True):
        bench.submit(prompt, max_tokens)

    assert bench.run() == expected(layout)
    assert (bench.scheduler.counters.preemptions > 0) == (num_blocks == 13)
    assert 1 <= bench.runner._graph.num_traces <= 4


def test_equal_prompts_one_after_the_other_answer_alike() -> None:
    """GR-5: the second request finds the first one's blocks, and does not use them."""
    bench = make_bench(LAYOUTS["hybrid"])
    bench.submit(range(1, 18), 6)
    bench.run()
    bench.submit(range(1, 18), 6)
    answers, lane = bench.run(), cast("PagedLane", bench.lane)

    assert answers[0] == answers[1]
    assert lane.stats().prefix_hit_tokens == 0


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_states_end_with_their_turns(layout: CacheLayout) -> None:
    """GR-5: when no request runs, no state is held."""
    bench = make_bench(layout)
    bench.submit([1, 2, 3], 8)
    bench.submit([4, 5], 8)
    for _ in range(3):
        bench.step()
    lane = cast("PagedLane", bench.lane)

    assert lane.states.num_rows == 2
    bench.run()
    gc.collect()
    assert (lane.states.num_rows, lane.states.num_bytes) == (0, 0)


def test_states_are_evaluated_with_their_step() -> None:
    """GR-5: a slice without logits is computed all the same, and a reset forgets it."""
    bench = make_bench(LAYOUTS["recurrent"], prefill_chunk_size=4)
    bench.submit(range(12), 2)
    bench.step()
    lane = cast("PagedLane", bench.lane)

    assert lane.arrays([]) == lane.states.arrays() != []
    lane.reset()
    assert lane.arrays([]) == []


@pytest.mark.parametrize("make_lane", [paged, flat])
@pytest.mark.parametrize("row_exact", [False, True])
def test_a_step_brings_the_hidden_states_that_its_plan_asks_for(
    make_lane: MakeLane, row_exact: bool
) -> None:
    """ST-1: taps are part of the plan; every token of a step has its hidden state."""
    layout = LAYOUTS["hybrid"]
    bench = make_bench(layout, make_lane, row_exact=row_exact, taps=(FINAL,))
    for prompt in ([1, 2, 3, 4, 5], [7, 8]):
        bench.submit(prompt, 2)
    bench.step()
    step, family = bench.previous, cast("Any", ToyFamily(layout))
    assert step is not None
    alone = Runner(family, nn.Module(), layout, flat(layout, 2), row_exact=False)
    logits = [alone.evaluate(row.tokens) for row in step.plan.rows]

    assert [row.num_hidden for row in step.plan.rows] == [5, 2]
    hidden = step.hidden[FINAL] @ family._head
    assert mx.allclose(hidden, mx.concatenate(logits), atol=1e-5).item()
