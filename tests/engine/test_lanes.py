"""Requests of a recurrent model on both lanes, driven as the loop drives them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import attrs
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    RecurrentState,
    StateTensor,
    layer_routes,
)
from neve.contract.forward import (
    FINAL,
    ForwardContext,
    ForwardOutput,
    Scoring,
    State,
    StepBatch,
)
from neve.engine import runner
from neve.engine.lanes import FlatLane, Lane, PagedLane
from neve.engine.runner import Runner, Step
from neve.ids import RequestId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.flat_coordinator import FlatCoordinator
from neve.pools.layer_pool import LayerPool
from neve.sampling.params import SamplingParams
from neve.sampling.sampler import RowState
from neve.scheduler.request import Request
from neve.scheduler.scheduler import Scheduler
from neve.settings import SchedulerSettings

pytestmark = pytest.mark.mlx

DIMS, VOCAB, BLOCK_SIZE, MAX_CONTEXT = 8, 32, 4, 64
STATE = RecurrentState([StateTensor("sum", (DIMS,), "float32")])
LAYOUTS = {
    "hybrid": layer_routes([STATE, FullAttention(1, DIMS), STATE]),
    "recurrent": layer_routes([STATE, STATE]),
}


def decaying_sum(inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
    """Return the running sums `[N, L, DIMS]`."""
    (x,), (total,) = inputs, state
    outputs: list[mx.array] = []
    for t in range(x.shape[1]):
        total = total * 0.8 + x[:, t]
        outputs.append(total)
    return mx.stack(outputs, axis=1), (total,)


class ToyFamily:
    """A family whose next token depends on all before it."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        keys = mx.random.split(mx.random.key(3), 2)
        self._embedding = mx.random.normal((VOCAB, DIMS), key=keys[0])
        self._head = mx.random.normal((DIMS, VOCAB), key=keys[1])

    def forward(self, model: Any, batch: StepBatch, context: ForwardContext) -> ForwardOutput:
        x = self._embedding[batch.ids]
        for layer in range(self._layout.num_layers):
            if layer == 1 and self._layout.groups:
                heads = x[:, None]
                x = x + context.attend(layer, heads, heads, heads, scoring=Scoring(0.3))[:, 0]
            else:
                x = mx.tanh(x + context.scan(layer, (x,), decaying_sum))
        wanted = batch.logit_rows.shape[0] > 0
        hidden = {} if batch.hidden_rows is None else {FINAL: x[batch.hidden_rows]}
        return ForwardOutput(x[batch.logit_rows] @ self._head if wanted else None, hidden)


def paged(layout: CacheLayout, num_blocks: int) -> PagedLane:
    pools = [
        LayerPool(spec, layout.num_group_layers(g), num_blocks, BLOCK_SIZE, mx.float32)
        for g, spec in enumerate(layout.groups)
    ]
    return PagedLane(
        layout,
        pools,
        Coordinator(layout, [BlockAllocator(num_blocks, BLOCK_SIZE)]),
        block_size=BLOCK_SIZE,
        max_num_seqs=4,
        max_context=MAX_CONTEXT,
    )


def flat(layout: CacheLayout, num_blocks: int) -> FlatLane:
    return FlatLane(layout, FlatCoordinator(num_blocks - 1, BLOCK_SIZE))


@attrs.define(eq=False)
class Bench:
    """A lane and its scheduler, one step ahead of what was read."""

    lane: Lane
    scheduler: Scheduler
    runner: Runner
    previous: Step | None = None
    done: dict[int, list[int]] = attrs.field(factory=dict)
    states: dict[RequestId, RowState] = attrs.field(factory=dict)

    def submit(self, prompt: Sequence[int], max_tokens: int) -> None:
        request = Request(RequestId(len(self.states)), list(prompt), max_tokens)
        params = SamplingParams(temperature=0.0)
        self.states[request.id] = RowState.create(
            params, vocab_size=VOCAB, prompt_tokens=prompt
        )
        self.scheduler.submit(request)

    def step(self) -> None:
        plan = self.scheduler.plan()
        assert not plan.starved
        step = None
        if plan.rows:
            step = self.runner.build(plan, self.previous, self.states)
            self.scheduler.mark_in_flight(plan)
        tokens = self.previous.read()[0] if self.previous else []
        if step is not None:
            step.start()
        settled, self.previous = self.previous, step
        if settled is not None:
            self.settle(settled, tokens)

    def settle(self, step: Step, tokens: Sequence[int | None]) -> None:
        for row in step.plan.rows:
            first = step.sources.get(row.request, 0)
            drawn = [t for t in tokens[first : first + row.num_logits] if t is not None]
            request = self.scheduler.settle(row, drawn)
            if request is not None and request.num_outputs == request.max_tokens:
                self.done[row.request] = request.tokens
                self.scheduler.finish(request)

    def run(self) -> dict[int, list[int]]:
        while not self.scheduler.is_idle or self.previous is not None:
            self.step()
        return self.done


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    def make(
        layout: CacheLayout,
        make_lane: Callable[[CacheLayout, int], Lane] = paged,
        *,
        num_blocks: int = 65,
        row_exact: bool = False,
        **settings: Any,
    ) -> Bench:
        lane = make_lane(layout, num_blocks)
        scheduler = Scheduler(
            SchedulerSettings(max_num_seqs=4, **settings),
            lane.cache,
            max_context=MAX_CONTEXT,
            block_size=BLOCK_SIZE,
            row_exact=row_exact,
        )
        family: Any = ToyFamily(layout)
        made = Runner(family, nn.Module(), layout, lane, row_exact=row_exact)
        return Bench(lane, scheduler, made)

    return make


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
    make_lane: Callable[[CacheLayout, int], Lane],
    options: dict[str, Any],
    make_bench: Callable[..., Bench],
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
    make_bench: Callable[..., Bench],
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


def test_equal_prompts_one_after_the_other_answer_alike(
    make_bench: Callable[..., Bench],
) -> None:
    """GR-5: the second request finds the first one's blocks, and does not use them."""
    bench = make_bench(LAYOUTS["hybrid"])
    bench.submit(range(1, 18), 6)
    bench.run()
    bench.submit(range(1, 18), 6)
    answers, lane = bench.run(), cast("PagedLane", bench.lane)

    assert answers[0] == answers[1]
    assert lane.stats().prefix_hit_tokens == 0


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_states_end_with_their_turns(
    layout: CacheLayout, make_bench: Callable[..., Bench]
) -> None:
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


def test_states_are_evaluated_with_their_step(make_bench: Callable[..., Bench]) -> None:
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
    make_lane: Callable[[CacheLayout, int], Lane], row_exact: bool
) -> None:
    """ST-1: taps are part of the plan; every token of a step has its hidden state."""
    layout = LAYOUTS["hybrid"]
    lane, family = make_lane(layout, 65), cast("Any", ToyFamily(layout))
    scheduler = Scheduler(
        SchedulerSettings(max_num_seqs=4),
        lane.cache,
        max_context=MAX_CONTEXT,
        block_size=BLOCK_SIZE,
        row_exact=row_exact,
        taps=(FINAL,),
    )
    bench = Bench(
        lane, scheduler, Runner(family, nn.Module(), layout, lane, row_exact=row_exact)
    )
    for prompt in ([1, 2, 3, 4, 5], [7, 8]):
        bench.submit(prompt, 2)
    bench.step()
    step = bench.previous
    assert step is not None
    alone = Runner(family, nn.Module(), layout, flat(layout, 2), row_exact=False)
    logits = [alone.evaluate(row.tokens) for row in step.plan.rows]

    assert [row.num_hidden for row in step.plan.rows] == [5, 2]
    hidden = step.hidden[FINAL] @ family._head
    assert mx.allclose(hidden, mx.concatenate(logits), atol=1e-5).item()
