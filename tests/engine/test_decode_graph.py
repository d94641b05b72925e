"""Steps of decode rows from traces, against the same steps built anew, on the CPU."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import neve
from neve.contract.cache_spec import (
    Alias,
    CacheLayout,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    layer_routes,
)
from neve.contract.forward import (
    ForwardContext,
    ForwardOutput,
    RopeSpec,
    Scoring,
    State,
    StepBatch,
    Tap,
)
from neve.contract.heads import HeadShape, Projected
from neve.engine import runner
from neve.engine.decode_graph import DecodeGraph, _UnknownPosition
from neve.engine.lanes import PagedLane
from neve.forward import kernel_attention
from neve.forward.paged_step import PagedStep
from neve.forward.step_batch import RowInput, build_step_batch
from neve.ids import BlockId, RequestId, SequenceId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.block_table import TableChanges
from neve.kvcache.coordinator import Coordinator
from neve.metal.runtime import dispatch
from neve.pools.layer_pool import LayerPool
from neve.scheduler.plan import PlannedRow
from neve.testing.golden import read_goldens
from neve.testing.parity import differs_at

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
TRAINED = sorted(path.parent.name for path in CHECKPOINTS.glob("*/golden.json"))
NEW_TOKENS = 6
DIMS, VOCAB, BLOCK_SIZE, ATOL = 8, 32, 4, 1e-5
STATE = RecurrentState([StateTensor("sum", (DIMS,), "float32")])
LAYOUTS: Mapping[str, CacheLayout] = {
    "attention": layer_routes([FullAttention(1, DIMS), SlidingWindow(6, 1, DIMS), Alias(0)]),
    "hybrid": layer_routes([STATE, FullAttention(1, DIMS)]),
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
    """A layer a route, one head of two as wide as the model; and how often it was asked."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.num_calls = 0
        keys = mx.random.split(mx.random.key(3), 2)
        self._embedding = mx.random.normal((VOCAB, DIMS), key=keys[0])
        self._weight = mx.random.normal((DIMS, 4 * DIMS), key=keys[1])

    def forward(self, model: Any, batch: StepBatch, context: ForwardContext) -> ForwardOutput:
        self.num_calls += 1
        self.look_at(batch)
        x = self._embedding[batch.ids]
        for layer, route in enumerate(self.layout.routes):
            if self.layout.states and layer == 0:
                x = mx.tanh(x + context.scan(layer, (x,), decaying_sum))
                continue
            kv_heads = 0 if isinstance(route, Alias) else 1
            made = Projected(
                ((x @ self._weight)[:, : (2 + 2 * kv_heads) * DIMS],),
                HeadShape(2, kv_heads, DIMS),
                rope=RopeSpec(DIMS // 2, 1e3),
            )
            x = x + context.attend_projected(layer, made, scoring=Scoring(0.4))[:, 0]
        rows = batch.logit_rows.shape[0]
        hidden = dict.fromkeys(batch.taps, x[batch.hidden_rows])
        logits = x[batch.logit_rows] @ self._embedding.T if rows else None
        return ForwardOutput(logits, hidden)

    def look_at(self, batch: StepBatch) -> None:
        """Do nothing; others may."""


class CuriousFamily(ToyFamily):
    """Reads positions on the host."""

    def look_at(self, batch: StepBatch) -> None:
        assert batch.segments[0].position + 1 > 0


class HastyFamily(ToyFamily):
    """Evaluates the step's ids."""

    def look_at(self, batch: StepBatch) -> None:
        mx.eval(batch.ids)


class Table:
    """A sequence's blocks in one group, as far as the mirror has not been told of them."""

    def __init__(self) -> None:
        self.length = 0
        self.unsynced: list[tuple[int, int]] = []

    def take_changes(self) -> TableChanges:
        taken, self.unsynced = self.unsynced, []
        return tuple((index, BlockId(block)) for index, block in taken)


class Row:
    """A sequence, as a lane knows it."""

    def __init__(self, index: int, num_groups: int) -> None:
        self.id = SequenceId(index)
        self.position = 0
        self.tables = [Table() for _ in range(num_groups)]


class Side:
    """A lane of its own, and the sequences that run on it."""

    def __init__(self, layout: CacheLayout, num_blocks: int) -> None:
        self.pools = [
            LayerPool(spec, layout.num_group_layers(g), num_blocks, BLOCK_SIZE, mx.float32)
            for g, spec in enumerate(layout.groups)
        ]
        cache = Coordinator(
            layout, [BlockAllocator(num_blocks, BLOCK_SIZE) for _ in self.pools]
        )
        self.lane = PagedLane(
            layout,
            self.pools,
            cache,
            block_size=BLOCK_SIZE,
            max_num_seqs=4,
            max_context=64,
        )
        self.sequences: dict[str, Row] = {}
        self._free = [list(range(1, num_blocks)) for _ in self.pools]

    def prepare(self, batch: StepBatch, names: Sequence[str]) -> PagedStep:
        """Return the step, its rows' blocks reserved."""
        for name, segment in zip(names, batch.segments, strict=True):
            sequence = self.sequences.setdefault(
                name, Row(len(self.sequences), len(self.pools))
            )
            sequence.position = segment.position + segment.length
            for table, free in zip(sequence.tables, self._free, strict=True):
                while table.length * BLOCK_SIZE < sequence.position:
                    table.unsynced.append((table.length, free.pop()))
                    table.length += 1
        rows = [
            PlannedRow(
                RequestId(self.sequences[name].id),
                self.sequences[name].id,
                segment.position,
                blocks=tuple(t.take_changes() for t in self.sequences[name].tables),
            )
            for name, segment in zip(names, batch.segments, strict=True)
        ]
        return self.lane.prepare(batch, rows)

    def eval(self, logits: mx.array | None) -> np.ndarray:
        assert logits is not None
        mx.eval(logits, *self.lane.arrays(()))
        return np.array(logits)


@attrs.define(eq=False)
class Twins:
    """One lane whose decode steps are traced, and one whose steps are all built anew."""

    family: ToyFamily
    sides: Sequence[Side]
    graph: DecodeGraph
    tokens: dict[str, list[int]] = attrs.field(factory=dict)
    rotary: Callable[[mx.array], mx.array] | None = None

    @classmethod
    def of(cls, family: ToyFamily, num_blocks: int = 40) -> Twins:
        made: Any = family
        sides = [Side(family.layout, num_blocks) for _ in range(2)]
        return cls(family, sides, DecodeGraph(made, nn.Module(), family.layout))

    def prefill(self, **lengths: int) -> None:
        """Begin sequences, one step each."""
        for name, length in lengths.items():
            tokens = [(ord(name) + 3 * i) % VOCAB for i in range(length)]
            logits, _ = self._step(build_step_batch([RowInput(0, tokens)], None), name)
            self.tokens[name] = [*tokens, int(logits[0].argmax())]

    def decode(self, names: str, times: int = 1) -> bool:
        """Compute steps of decode rows on both lanes; return whether all were traced."""
        traced = True
        for _ in range(times):
            rows = [RowInput(len(self.tokens[n]) - 1, self.tokens[n][-1:]) for n in names]
            batch = build_step_batch(rows, None)
            if self.rotary is not None:
                batch = attrs.evolve(batch, rope_positions=self.rotary(batch.positions))
            logits, replayed = self._step(batch, names, self.graph)
            traced = traced and replayed
            for name, row in zip(names, logits, strict=True):
                self.tokens[name].append(int(row.argmax()))
        return traced

    def _step(
        self,
        batch: StepBatch,
        names: str,
        graph: Callable[[StepBatch, PagedStep], tuple[mx.array, bool] | None] = lambda *_: None,
    ) -> tuple[np.ndarray, bool]:
        """Compute a step on both lanes, on one by `graph`, and return its logits, compared."""
        steps = [side.prepare(batch, names) for side in self.sides]
        made = graph(batch, steps[0])
        replayed = made is not None
        both = [
            self.family.forward(None, batch, step.context(batch)).logits
            for step in steps[int(replayed) :]
        ]
        both = both if made is None else [made[0], *both]
        evaluated = [side.eval(x) for side, x in zip(self.sides, both, strict=True)]
        bound = ATOL * max(1.0, np.abs(evaluated[1]).max())  # rounding scales with the range
        np.testing.assert_allclose(*evaluated, rtol=1e-5, atol=bound)
        return evaluated[0], replayed


@pytest.fixture
def make_twins() -> Callable[..., Twins]:
    """Return a builder of twins of a layout by name."""

    def make(name: str = "attention", family: type[ToyFamily] = ToyFamily, **options: Any):
        return Twins.of(family(LAYOUTS[name]), **options)

    return make


def counted(work: Callable[[], Any]) -> dict[str, int]:
    """Return what `work` added to the counters of the paged operations."""
    before = dispatch.counts()
    work()
    return {
        name: times - before.get(name, 0)
        for name, times in dispatch.counts().items()
        if name.startswith(("paged_decode:", "prepare_heads:")) and times != before.get(name, 0)
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_replays_compute_what_a_step_computes(
    name: str, make_twins: Callable[..., Twins]
) -> None:
    """PK-1: over many steps and block boundaries; one trace serves while the rows stay."""
    twins = make_twins(name)
    twins.prefill(a=5, b=2, c=11)

    assert twins.decode("abc", 12)
    assert twins.graph.num_traces == 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_join_and_leave(name: str, make_twins: Callable[..., Twins]) -> None:
    """PK-1: each number of rows is traced once, in whatever order which rows run."""
    twins = make_twins(name)
    twins.prefill(a=5, b=2)
    assert twins.decode("ab", 2)
    twins.prefill(c=7)
    for names in ("cab", "bc", "c", "ca", "bac"):
        assert twins.decode(names, 2)

    assert twins.graph.num_traces == 3


def test_rotary_positions_are_arrays_of_a_trace(make_twins: Callable[..., Twins]) -> None:
    """PK-1, FW-2: steps with them and without are two traces, each replayed."""
    twins = make_twins()
    twins.prefill(a=5, b=2)
    assert twins.decode("ab", 2)
    twins.rotary = lambda positions: 3 * positions[None] + 1
    assert twins.decode("ab", 3)
    twins.rotary = None

    assert twins.decode("ab", 2)
    assert twins.graph.num_traces == 2


@pytest.mark.parametrize("tapped", [False, True])
def test_a_step_with_taps_is_built_anew(
    tapped: bool, make_twins: Callable[..., Twins], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PK-1, FW-2: a trace has logits alone, so hidden states come from a step of its own."""
    monkeypatch.setattr(runner, "launch", Tracing)
    twins = make_twins()
    twins.prefill(a=5)
    side, family = twins.sides[0], cast("Any", twins.family)
    made = runner.Runner(family, nn.Module(), twins.family.layout, side.lane, row_exact=False)
    batch = build_step_batch([RowInput(5, [1])], None)
    if tapped:
        batch = attrs.evolve(batch, taps=(Tap(0),), hidden_rows=mx.array([0]))

    assert (made._replayed(batch, side.prepare(batch, "a")) is None) == tapped
    assert made._graph.num_traces == int(not tapped)


def test_a_longer_context_is_another_trace(
    make_twins: Callable[..., Twins], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PK-1: the longest row's next power of two bounds what kernels look at."""
    monkeypatch.setattr(kernel_attention, "SHORTEST", 8)
    twins = make_twins()
    twins.prefill(a=5, b=2)
    assert twins.decode("ab", 3)
    assert twins.graph.num_traces == 1
    assert twins.decode("ab", 8)
    assert twins.graph.num_traces == 2

    assert twins.decode("ab")
    assert twins.graph.num_traces == 3
    assert twins.decode("b", 3)
    assert twins.graph.num_traces == 5


def test_a_pool_that_grows_is_another_trace(make_twins: Callable[..., Twins]) -> None:
    """KV-7: what was written before a growth is seen after it."""
    twins = make_twins(num_blocks=12)
    twins.prefill(a=9, b=3)
    assert twins.decode("ab", 3)
    for side in twins.sides:
        for pool in side.pools:
            pool.grow(20)

    assert twins.decode("ab", 3)
    assert twins.graph.num_traces == 2


@pytest.mark.parametrize("family", [CuriousFamily, HastyFamily])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_family_that_cannot_be_traced_is_called_each_step(
    name: str, family: type[ToyFamily], make_twins: Callable[..., Twins], logged: list[Any]
) -> None:
    """PK-1: pages and states are as they were, one line says why, and nobody tries again."""
    twins = make_twins(name, family)
    twins.prefill(a=5, b=2)

    assert not twins.decode("ab")
    num_calls = twins.family.num_calls
    assert not twins.decode("ab", 4)
    assert twins.family.num_calls == num_calls + 8
    assert [entry["event"] for entry in logged] == ["engine.decode.untraced"]
    assert logged[0]["log_level"] == "warning"
    if family is CuriousFamily:
        assert "read batch.positions" in logged[0]["error"]


def test_replays_are_counted_as_their_trace(make_twins: Callable[..., Twins]) -> None:
    """PK-1: counters say what ran, although a replay dispatches nothing."""
    twins = make_twins()
    twins.prefill(a=5, b=2)
    plain = counted(lambda: twins.decode("a"))
    twins.decode("ab")
    one, three = (counted(lambda n=n: twins.decode("ab", n)) for n in (1, 3))

    assert plain == one == {"paged_decode:ops": 3, "prepare_heads:ops": 3}
    assert three == {name: 3 * times for name, times in one.items()}


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: x * 2,
        lambda x: x // 4,
        lambda x: x % 4,
        lambda x: -x,
        lambda x: x < 4,
        lambda x: x == 0,
        lambda x: x != 0,
        lambda x: x in {0, 1},
        bool,
        int,
        float,
        operator.index,
        range,
        mx.array,
        lambda x: mx.arange(4) - x,
    ],
)
def test_no_trace_depends_on_a_position(read: Callable[[Any], Any]) -> None:
    """PK-1: a number read on the host would be wrong in every replay, so it is refused."""
    with pytest.raises((TypeError, ValueError)):
        read(_UnknownPosition())


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in CHECKPOINTS.glob("*/golden.json"))
)
def test_families_are_traced(
    name: str, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """PK-1, FW-8: every family keeps to what a trace needs, and its goldens hold."""
    goldens = read_goldens(CHECKPOINTS / name)
    assert goldens is not None
    prompt = goldens.prompt("recall_mid")
    monkeypatch.setattr(runner, "launch", Tracing)
    monkeypatch.setattr(runner, "DecodeGraph", Unfused)
    with neve.load(CHECKPOINTS / name, dtype="float32", paged_cache_memory_mb=8) as model:
        answer = model.generate(list(prompt.ids), max_tokens=NEW_TOKENS).tokens
        replays = model._engine.call(
            lambda core: cast("Unfused", core.runner._graph).num_replays
        )

    assert differs_at([*answer, *prompt.f32.tokens[len(answer) :]], prompt.f32) is None
    assert replays == NEW_TOKENS - 1
    assert "engine.decode.untraced" not in {entry["event"] for entry in logged}


class Tracing:
    """Stands for `neve.metal.runtime.launch` where the runner asks whether steps are traced."""

    @staticmethod
    def builds_graphs() -> bool:
        return True


class Unfused(DecodeGraph):
    """Traces steps, but computes them as they stand: a compiler takes a second an operation."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_replays = 0
        compiled, self._run = self._run, self._traced_and_computed
        self._compiled = compiled

    def _traced_and_computed(self, *args: Any) -> Any:
        self._compiled(*args)  # lazy: it is traced, and never evaluated
        self.num_replays += 1
        return self._trace(*args)
