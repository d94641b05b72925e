"""A toy model of attention layers, and three caches behind it: naive, flat and paged."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import mlx.core as mx
import numpy as np
import pytest

from neve.contract.cache_spec import (
    Alias,
    CacheLayout,
    FullAttention,
    Owned,
    SlidingWindow,
    Uncached,
    layer_routes,
)
from neve.contract.forward import ForwardContext, RopeSpec, Scoring, StepBatch
from neve.contract.heads import HeadShape, Projected
from neve.forward.flat_context import FlatContext
from neve.forward.paged_step import PagedStep
from neve.forward.step_batch import RowInput, build_step_batch
from neve.layers.heads import prepare
from neve.pools.device_tables import DeviceTables
from neve.pools.flat_cache import FlatCache
from neve.pools.layer_pool import LayerPool

DIMS, NUM_HEADS, VOCAB = 24, 4, 50
SOFTCAP = 2.0
GARBAGE = 1e4
WINDOW = 11


@attrs.frozen
class Part:
    """Tokens that a sequence computes in one step."""

    name: str
    tokens: Sequence[int]


class ToyModel:
    """An embedding and one residual layer a route, with random weights.

    Heads are rotated and attended to, or, if `projected`, left to the context altogether.
    """

    def __init__(
        self,
        layout: CacheLayout,
        seed: int = 0,
        *,
        projected: bool = False,
        sinks: mx.array | None = None,
        num_axes: int = 1,
    ) -> None:
        self.layout = layout
        self._projected = projected
        self._sinks = sinks
        self._num_axes = num_axes
        self._key = mx.random.key(seed)
        self._embedding = self._random(VOCAB, DIMS)
        self._weights = [self._layer(i) for i in range(layout.num_layers)]

    def _random(self, *shape: int) -> mx.array:
        self._key, key = mx.random.split(self._key)
        return mx.random.normal(shape, key=key) * shape[0] ** -0.5

    def _layer(self, layer: int) -> tuple[mx.array, ...]:
        if isinstance(self.layout.routes[layer], Uncached):
            return (self._random(DIMS, DIMS),)
        spec = self.layout.groups[self.layout.owner(layer).group]
        return (
            self._random(DIMS, NUM_HEADS * spec.head_dim),
            self._random(NUM_HEADS * spec.value_dim, DIMS),
            self._random(DIMS, spec.kv_heads * spec.head_dim),
            self._random(DIMS, spec.kv_heads * spec.value_dim),
        )

    def __call__(self, batch: StepBatch, context: ForwardContext) -> mx.array:
        """Return `[T, DIMS]`."""
        x = self._embedding[batch.ids] * 5
        for layer, route in enumerate(self.layout.routes):
            if isinstance(route, Uncached):
                x = x + mx.tanh(x @ self._weights[layer][0])
            else:
                x = x + self._attention(layer, x, context)
        return x

    def _attention(self, layer: int, x: mx.array, context: ForwardContext) -> mx.array:
        spec = self.layout.groups[self.layout.owner(layer).group]
        query, out, key, value = self._weights[layer]
        pairs, tokens = spec.head_dim // 4, x.shape[0]
        axes = tuple(i % self._num_axes for i in range(pairs))
        rope = RopeSpec(2 * pairs, 1e3, axes=axes if self._num_axes > 1 else None)
        softcap = SOFTCAP if layer % 2 else None
        scoring = Scoring(spec.head_dim**-0.5, softcap, sinks=self._sinks)
        if self._projected:
            owned = isinstance(self.layout.routes[layer], Owned)
            heads = HeadShape(
                NUM_HEADS, spec.kv_heads if owned else 0, spec.head_dim, spec.value_dim
            )
            parts = tuple(x @ w for w in ((query, key, value) if owned else (query,)))
            made = Projected(parts, heads, rope=rope)
            return context.attend_projected(layer, made, scoring).reshape(tokens, -1) @ out
        q = context.rope((x @ query).reshape(tokens, NUM_HEADS, -1), rope)
        k = v = None
        if isinstance(self.layout.routes[layer], Owned):
            k = context.rope((x @ key).reshape(tokens, spec.kv_heads, -1), rope)
            v = (x @ value).reshape(tokens, spec.kv_heads, -1)
        return context.attend(layer, q, k, v, scoring).reshape(tokens, -1) @ out


class NaiveContext:
    """The forward context as its contract reads: lists of tokens, one loop a query."""

    def __init__(
        self,
        layout: CacheLayout,
        histories: Sequence[dict[int, list[tuple[mx.array, mx.array]]]],
        batch: StepBatch,
    ) -> None:
        self._layout = layout
        self._histories = histories  # a sequence -> anchor layer -> its tokens' keys, values
        self._batch = batch

    def rope(self, x: mx.array, spec: RopeSpec) -> mx.array:
        if self._batch.rope_positions is not None:
            return _rope_by_pair(x, self._batch.rope_positions.tolist(), spec)
        positions: Any = self._batch.positions.tolist()
        tokens = [
            mx.fast.rope(
                x[t][None, :, None],
                spec.dims,
                traditional=False,
                base=spec.theta,
                scale=1.0,
                offset=position,
            )[0, :, 0]
            for t, position in enumerate(positions)
        ]
        return mx.stack(tokens)

    def attend(
        self,
        layer: int,
        q: mx.array,
        k: mx.array | None,
        v: mx.array | None,
        scoring: Scoring,
    ) -> mx.array:
        route = self._layout.routes[layer]
        anchor = route.anchor if isinstance(route, Alias) else layer
        spec = self._layout.groups[self._layout.owner(layer).group]
        rows: list[mx.array] = []
        for segment, history in zip(self._batch.segments, self._histories, strict=True):
            for i in range(segment.length):
                t, position = segment.start + i, segment.position + i
                seen = history.setdefault(anchor, [])
                if k is not None and v is not None:
                    seen[position:] = [(k[t], v[t])]
                oldest = position + 1 - spec.window if isinstance(spec, SlidingWindow) else 0
                visible = seen[max(0, oldest) : position + 1]
                keys, values = (mx.stack(list(x)) for x in zip(*visible, strict=True))
                rows.append(_attend_one(q[t], keys, values, scoring))
        return mx.stack(rows)

    def attend_projected(self, layer: int, projected: Projected, scoring: Scoring) -> mx.array:
        return self.attend(layer, *prepare(projected, self.rope), scoring)


def _rope_by_pair(x: mx.array, positions: Any, spec: RopeSpec) -> mx.array:
    """Rotate `x [T, H, D]` pair by pair, each at the position on its own axis."""
    heads, half = np.array(x, np.float64), spec.dims // 2
    out = heads.copy()
    for pair in range(half):
        axis = spec.axes[pair] if spec.axes and len(positions) > 1 else 0
        angle = np.array(positions[axis])[:, None] * spec.theta ** (-2 * pair / spec.dims)
        a, b = heads[..., pair], heads[..., pair + half]
        out[..., pair] = a * np.cos(angle) - b * np.sin(angle)
        out[..., pair + half] = b * np.cos(angle) + a * np.sin(angle)
    return mx.array(out.astype(np.float32))


def _attend_one(q: mx.array, keys: mx.array, values: mx.array, scoring: Scoring) -> mx.array:
    """Return `[Hq, Dv]` for one query `[Hq, D]` and keys `[K, Hk, D]`."""
    repeats = q.shape[0] // keys.shape[1]
    keys, values = mx.repeat(keys, repeats, axis=1), mx.repeat(values, repeats, axis=1)
    scores = (keys * q).sum(axis=-1) * scoring.scale
    if scoring.softcap is not None:
        scores = scoring.softcap * mx.tanh(scores / scoring.softcap)
    if scoring.sinks is not None:
        scores = mx.concatenate([scores, scoring.sinks[None]])
    weights = mx.softmax(scores, axis=0)[: len(values)]
    return (weights[..., None] * values).sum(axis=0)


class Lane(Protocol):
    """Something that makes contexts for sequences that it knows by name."""

    def context(self, batch: StepBatch, names: Sequence[str]) -> Any: ...


class NaiveLane:
    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        self._histories: dict[str, dict[int, list[tuple[mx.array, mx.array]]]] = {}

    def context(self, batch: StepBatch, names: Sequence[str]) -> Any:  # attention alone
        histories = [self._histories.setdefault(name, {}) for name in names]
        return NaiveContext(self._layout, histories, batch)


class FlatLane:
    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        self._caches: dict[str, FlatCache] = {}

    def context(self, batch: StepBatch, names: Sequence[str]) -> ForwardContext:
        caches = [self._caches.setdefault(name, FlatCache()) for name in names]
        return FlatContext(self._layout, caches, batch)


@attrs.define
class Tables:
    """One sequence's row of the mirrors, and its blocks in each group; None where expired."""

    row: int
    blocks: list[list[int | None]]


class PagedLane:
    """Pools whose blocks are handed out in a shuffled order, a different one in each group.

    What a window has moved past becomes the null block, and is handed out again at once.
    """

    def __init__(
        self,
        layout: CacheLayout,
        *,
        block_size: int = 16,
        num_blocks: int = 24,
        num_rows: int = 4,
        garbage: bool = True,
        seed: int = 0,
    ) -> None:
        shuffle = random.Random(seed)
        self.layout, self.block_size = layout, block_size
        self.pools = [
            LayerPool(spec, layout.num_group_layers(g), num_blocks, block_size, mx.float32)
            for g, spec in enumerate(layout.groups)
        ]
        self._tables = [DeviceTables(num_rows, num_blocks) for _ in layout.groups]
        self._free = [shuffle.sample(range(1, num_blocks), num_blocks - 1) for _ in self.pools]
        self._rows = shuffle.sample(range(num_rows), num_rows)
        self._known: dict[str, Tables] = {}
        if garbage:
            self._litter(num_blocks, num_rows)

    def _litter(self, num_blocks: int, num_rows: int) -> None:
        """Fill every slot, and every entry of every table, with leftovers."""
        slots = mx.arange(num_blocks * self.block_size)
        for g, (spec, pool) in enumerate(zip(self.layout.groups, self.pools, strict=True)):
            k = mx.full((len(slots), spec.kv_heads, spec.head_dim), GARBAGE)
            v = mx.full((len(slots), spec.kv_heads, spec.value_dim), -GARBAGE)
            for ordinal in range(self.layout.num_group_layers(g)):
                places = pool.slots(slots // self.block_size, slots % self.block_size)
                pool.write(ordinal, k, v, places)
            self._tables[g].update(
                (row, i, (row + i) % num_blocks)
                for row in range(num_rows)
                for i in range(num_blocks)
            )

    def _reserve(self, name: str, position: int, length: int) -> int:
        """Return the row of a sequence whose tables hold `[position, position + length)`."""
        if name not in self._known:
            self._known[name] = Tables(self._rows.pop(), [[] for _ in self._free])
        known = self._known[name]
        needed = -(-(position + length) // self.block_size)
        for g, (free, held) in enumerate(zip(self._free, known.blocks, strict=True)):
            first = self.layout.groups[g].first_visible(position) // self.block_size
            for index, block in enumerate(held[:first]):
                if block is not None:
                    free.append(block)
                    held[index] = None
                    self._tables[g].update([(known.row, index, 0)])
            new = {index: free.pop() for index in range(len(held), needed)}
            held.extend(new.values())
            self._tables[g].update((known.row, index, block) for index, block in new.items())
        return known.row

    def num_held(self, name: str, group: int) -> int:
        """Return the blocks that a sequence holds in a group."""
        return sum(block is not None for block in self._known[name].blocks[group])

    def context(self, batch: StepBatch, names: Sequence[str]) -> ForwardContext:
        rows = [
            self._reserve(name, segment.position, segment.length)
            for name, segment in zip(names, batch.segments, strict=True)
        ]
        step = PagedStep(self.layout, self.pools, self._tables, self.block_size, rows)
        return step.context(batch)


LAYOUTS: Mapping[str, CacheLayout] = {
    "uniform": CacheLayout([FullAttention(2, 8)], [Owned(0, 0), Owned(0, 1)]),
    "two groups": CacheLayout(
        [FullAttention(2, 8), FullAttention(1, 16, 12)], [Owned(0, 0), Owned(1, 0), Owned(0, 1)]
    ),
    "aliases": CacheLayout(
        [FullAttention(2, 8), FullAttention(4, 4)],
        [Owned(0, 0), Uncached(), Owned(1, 0), Alias(0), Alias(2), Owned(0, 1), Alias(0)],
    ),
    "windows": layer_routes(
        [
            SlidingWindow(WINDOW, 2, 8),
            FullAttention(1, 12, 8),
            SlidingWindow(WINDOW, 2, 8),
            Alias(0),
            Alias(1),
            SlidingWindow(5, 4, 4, 8),
        ]
    ),
    "windows alone": layer_routes([SlidingWindow(16, 4, 8), SlidingWindow(1, 1, 8), Alias(0)]),
}


@pytest.fixture(params=["uniform", "two groups", "aliases", "windows"])
def layout(request: pytest.FixtureRequest) -> CacheLayout:
    """Layouts of every kind in turn."""
    return LAYOUTS[request.param]


@pytest.fixture
def layouts() -> Mapping[str, CacheLayout]:
    """The layouts by name."""
    return LAYOUTS


@pytest.fixture
def make_model() -> Callable[[CacheLayout], ToyModel]:
    """Return a builder of toy models."""
    return ToyModel


@pytest.fixture
def lanes() -> Mapping[str, Callable[..., Lane]]:
    """Builders of the three lanes."""
    return {"naive": NaiveLane, "flat": FlatLane, "paged": PagedLane}


@pytest.fixture
def make_part() -> Callable[[str, Sequence[int]], Part]:
    """Return a builder of parts of steps."""
    return Part


@pytest.fixture(scope="session")
def known() -> dict[Any, dict[str, mx.array]]:
    """What naive lanes have computed: layout and prompts -> outputs."""
    return {}


@pytest.fixture
def run_naive(
    run: Callable[..., dict[str, mx.array]], known: dict[Any, dict[str, mx.array]]
) -> Callable[..., dict[str, mx.array]]:
    """Return a function that computes whole prompts naively, each set of them once."""

    def run_once(model: ToyModel, prompts: Mapping[str, Sequence[int]]) -> dict[str, mx.array]:
        key = (model.layout, *((name, tuple(tokens)) for name, tokens in prompts.items()))
        if key not in known:
            steps = [[Part(name, tokens)] for name, tokens in prompts.items()]
            known[key] = run(model, NaiveLane(model.layout), steps)
        return known[key]

    return run_once


@pytest.fixture
def run() -> Callable[..., dict[str, mx.array]]:
    """Return a function that runs steps on a lane and gives each sequence's outputs."""

    def run_steps(
        model: ToyModel,
        lane: Lane,
        steps: Sequence[Sequence[Part]],
        rotary: Callable[[mx.array], mx.array] | None = None,
    ) -> dict[str, mx.array]:
        outputs: dict[str, list[mx.array]] = {}
        ends: dict[str, int] = {}
        for step in steps:
            parts = sorted(step, key=lambda part: len(part.tokens) > 1)
            batch = build_step_batch(
                [RowInput(ends.get(part.name, 0), part.tokens) for part in parts], None
            )
            if rotary is not None:
                batch = attrs.evolve(batch, rope_positions=rotary(batch.positions))
            x = model(batch, lane.context(batch, [part.name for part in parts]))
            mx.eval(x)
            for part, segment in zip(parts, batch.segments, strict=True):
                rows = x[segment.start : segment.start + segment.length]
                outputs.setdefault(part.name, []).append(rows)
                ends[part.name] = segment.position + segment.length
        return {name: mx.concatenate(rows) for name, rows in outputs.items()}

    return run_steps
