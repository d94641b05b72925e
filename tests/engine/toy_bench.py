"""A toy model on both lanes, driven as the loop drives a real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import mlx.core as mx
import mlx.nn as nn
import numpy as np

from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    Owned,
    Recurrent,
    RecurrentState,
    SlidingWindow,
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
    Tap,
)
from neve.contract.heads import RopeSpec
from neve.engine.lanes import FlatLane, Lane, PagedLane
from neve.engine.runner import Runner, Step
from neve.ids import RequestId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.kvcache.flat_coordinator import FlatCoordinator
from neve.pools.layer_pool import LayerPool
from neve.sampling.acceptance import accepted
from neve.sampling.params import SamplingParams
from neve.sampling.sampler import RowState
from neve.scheduler.request import Request
from neve.scheduler.scheduler import Scheduler
from neve.settings import SchedulerSettings

DIMS, VOCAB, BLOCK_SIZE, MAX_CONTEXT, WINDOW = 8, 32, 4, 96, 6
STATE = RecurrentState([StateTensor("sum", (DIMS,), "float32")])
FULL, SLIDING = FullAttention(1, DIMS), SlidingWindow(WINDOW, 1, DIMS)
LAYOUTS = {
    "full": layer_routes([FULL, FULL]),
    "window": layer_routes([FULL, SLIDING, SLIDING]),
    "hybrid": layer_routes([STATE, FULL, STATE]),
    "recurrent": layer_routes([STATE, STATE]),
    "all": layer_routes([STATE, SLIDING, FULL]),
}
ROPE = RopeSpec(DIMS, 5.0)
GREEDY = SamplingParams(temperature=0.0)

MakeLane: TypeAlias = Callable[[CacheLayout, int], Lane]
Drafter: TypeAlias = Callable[[Request], Sequence[int]]


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
        for layer, route in enumerate(self._layout.routes):
            if isinstance(route, Owned):
                heads = context.rope(x[:, None], ROPE)
                x = x + context.attend(layer, heads, heads, heads, scoring=Scoring(0.3))[:, 0]
            else:
                x = mx.tanh(x + context.scan(layer, (x,), decaying_sum))
        # turned by its position, or one token would follow the same one for ever
        x = context.rope(x[:, None], ROPE)[:, 0]
        wanted = batch.logit_rows.shape[0] > 0
        hidden = {} if batch.hidden_rows is None else {FINAL: x[batch.hidden_rows]}
        return ForwardOutput(x[batch.logit_rows] @ self._head if wanted else None, hidden)


def paged(layout: CacheLayout, num_blocks: int) -> PagedLane:
    pools = [
        LayerPool(spec, layout.num_group_layers(g), num_blocks, BLOCK_SIZE, mx.float32)
        for g, spec in enumerate(layout.groups)
    ]
    allocators = [BlockAllocator(num_blocks, BLOCK_SIZE) for _ in layout.groups or (None,)]
    return PagedLane(
        layout,
        pools,
        Coordinator(layout, allocators, max_slice=MAX_CONTEXT),
        block_size=BLOCK_SIZE,
        max_num_seqs=4,
        max_context=MAX_CONTEXT,
    )


def flat(layout: CacheLayout, num_blocks: int) -> FlatLane:
    return FlatLane(layout, FlatCoordinator(num_blocks - 1, BLOCK_SIZE))


def no_drafts(request: Request) -> Sequence[int]:
    return ()


def nothing(request: Request) -> None:
    """Look at nothing."""


@attrs.define(eq=False)
class Bench:
    """A lane and its scheduler, one step ahead of what was read.

    Attributes:
        lane: The lane.
        scheduler: Its scheduler.
        runner: What computes.
        drafter: Proposes tokens for a request before each step.
        settled: Looks at a request whose row has just been settled.
        previous: The step in flight.
        done: The tokens of requests that have ended, by id.
        states: Sampling states by request.
        steps: Every step so far.
    """

    lane: Lane
    scheduler: Scheduler
    runner: Runner
    drafter: Drafter = no_drafts
    settled: Callable[[Request], None] = nothing
    previous: Step | None = None
    done: dict[int, list[int]] = attrs.field(factory=dict)
    states: dict[RequestId, RowState] = attrs.field(factory=dict)
    steps: list[Step] = attrs.field(factory=list)

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        *,
        params: SamplingParams = GREEDY,
        look_ahead: bool = True,
    ) -> Request:
        number = RequestId(len(self.states))
        request = Request(number, list(prompt), max_tokens, look_ahead=look_ahead)
        self.states[number] = RowState.create(params, vocab_size=VOCAB, prompt_tokens=prompt)
        self.scheduler.submit(request)
        return request

    def step(self) -> None:
        for request in self.scheduler.requests:
            self.scheduler.propose(request, self.drafter(request))
        plan = self.scheduler.plan()
        assert not plan.starved
        step = None
        if plan.rows:
            step = self.runner.build(plan, self.previous, self.states)
            self.scheduler.mark_in_flight(plan)
            self.steps.append(step)
        tokens = self.previous.read()[0] if self.previous else []
        if step is not None:
            step.start()
        settled, self.previous = self.previous, step
        if settled is not None:
            self.settle(settled, tokens)

    def settle(self, step: Step, drawn: Sequence[int | None]) -> None:
        for row in step.plan.rows:
            first = step.sources.get(row.request, 0)
            found = accepted(row.drafts, drawn[first : first + row.num_logits])
            tokens = [token for token in found if token is not None]
            assert len(tokens) == len(found), "every logit is a number"
            request = self.scheduler.settle(row, tokens)
            if request is None:
                continue
            if row.drafts:
                self.states[row.request].accept(mx.array(tokens, mx.int32), count=len(tokens))
            self.settled(request)
            if request.num_outputs == request.max_tokens:
                self.done[row.request] = request.tokens
                self.scheduler.finish(request)

    def run(self) -> dict[int, list[int]]:
        while not self.scheduler.is_idle or self.previous is not None:
            self.step()
        return self.done


def make_bench(
    layout: CacheLayout,
    make_lane: MakeLane = paged,
    *,
    num_blocks: int = 65,
    row_exact: bool = False,
    drafter: Drafter = no_drafts,
    taps: tuple[Tap, ...] = (),
    **settings: Any,
) -> Bench:
    lane = make_lane(layout, num_blocks)
    scheduler = Scheduler(
        SchedulerSettings(max_num_seqs=4, **settings),
        lane.cache,
        max_context=MAX_CONTEXT,
        block_size=BLOCK_SIZE,
        row_exact=row_exact,
        taps=taps,
    )
    family: Any = ToyFamily(layout)
    made = Runner(family, nn.Module(), layout, lane, row_exact=row_exact)
    return Bench(lane, scheduler, made, drafter)


def contents(lane: Lane, request: Request) -> list[np.ndarray]:
    """Return what a request's next token sees of the cache, copied: layer by layer.

    Keys and values `[Hk, positions, D]` of the visible positions up to the frontier, and the
    recurrent states at the frontier. The request must not be in a step in flight.
    """
    read = _paged_layer if isinstance(lane, PagedLane) else _flat_layer
    arrays = [a for layer in range(lane.layout.num_layers) for a in read(lane, request, layer)]
    return [np.array(array) for array in arrays]


def _paged_layer(lane: Any, request: Request, layer: int) -> Sequence[mx.array]:
    sequence, route = request.sequence, lane.layout.routes[layer]
    if isinstance(route, Recurrent):
        return lane.states.snapshot(sequence.id).layers[layer]
    spec, pool = lane.layout.groups[route.group], lane.pools[route.group]
    first, end = spec.first_visible(sequence.frontier), sequence.frontier
    ids = sequence.tables[route.group].ids
    slots = [(ids[p // BLOCK_SIZE], p % BLOCK_SIZE) for p in range(first, end)]
    blocks, offsets = (mx.array(part) for part in zip(*slots, strict=True))
    pages = (pool.group.keys[route.ordinal], pool.group.values[route.ordinal])
    return [page.swapaxes(1, 2)[blocks, offsets].swapaxes(0, 1) for page in pages]


def _flat_layer(lane: Any, request: Request, layer: int) -> Sequence[mx.array]:
    sequence, route = request.sequence, lane.layout.routes[layer]
    cache, end = lane._caches[sequence.id], sequence.frontier
    if isinstance(route, Recurrent):
        return cache.read_state(layer, STATE, end, mx.float32)
    spec, slot = lane.layout.groups[route.group], (route.group, route.ordinal)
    first = spec.first_visible(end)
    if isinstance(spec, SlidingWindow):
        return [part[:, part.shape[1] - (end - first) :] for part in _window(cache, slot, spec)]
    return [part[:, first:] for part in cache.read(slot, end)]


def _window(cache: Any, slot: tuple[int, int], spec: SlidingWindow) -> Sequence[mx.array]:
    return cache.window(slot, spec).snapshot()
