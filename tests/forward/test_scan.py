"""Recurrences on both contexts, against a loop over tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.contract.cache_spec import (
    CacheLayout,
    FullAttention,
    RecurrentState,
    StateTensor,
    layer_routes,
)
from neve.contract.forward import ForwardContext, Scoring, State, StepBatch
from neve.errors import CacheMisuseError
from neve.forward.flat_context import FlatContext
from neve.forward.paged_step import PagedStep
from neve.forward.step_batch import RowInput, build_step_batch
from neve.pools.flat_cache import FlatCache
from neve.pools.state_store import StateStore

pytestmark = pytest.mark.mlx

DIMS, TAPS = 4, 3
DECAY = np.array([0.5, 0.75, 0.9, 0.97])
STATE = RecurrentState([StateTensor("taps", (TAPS, DIMS)), StateTensor("sum", (DIMS,))])
LAYOUT = layer_routes([STATE, None, STATE])


def moving_sum(inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
    """Add each token to a sum that decays, and look at the tokens just before it."""
    (x,), (taps, total) = inputs, state
    decay, outputs = mx.array(DECAY, x.dtype), []
    for t in range(x.shape[1]):
        total = total * decay + x[:, t]
        outputs.append(total - taps[:, 0] * 0.5)
        taps = mx.concatenate([taps[:, 1:], x[:, t, None]], axis=1)
    return mx.stack(outputs, axis=1), (taps, total)


def forward(batch: StepBatch, context: ForwardContext) -> mx.array:
    """Return `[T, DIMS]`: an embedding and two recurrent layers."""
    x = mx.stack([mx.sin(batch.ids * (i + 1)) for i in range(DIMS)], axis=1)
    x = x + context.scan(0, (x,), moving_sum)
    return mx.tanh(x) + context.scan(2, (x,), moving_sum)


def naive(ids: Sequence[int]) -> np.ndarray:
    """Return what `forward` gives for a sequence on its own, in float64."""
    x = np.stack([np.sin(np.array(ids) * (i + 1.0)) for i in range(DIMS)], axis=1)
    x = x + _naive_scan(x)
    return np.tanh(x) + _naive_scan(x)


def _naive_scan(x: np.ndarray) -> np.ndarray:
    outputs = np.zeros_like(x)
    for t in range(len(x)):
        seen = sum(x[i] * DECAY ** (t - i) for i in range(t + 1))
        outputs[t] = seen - (0.5 * x[t - TAPS] if t >= TAPS else 0)
    return outputs


class Owner:
    """A sequence: known by itself, as those of the coordinators are."""


class FlatRows:
    """Flat caches of sequences."""

    def __init__(self, layout: CacheLayout = LAYOUT) -> None:
        self._layout = layout
        self._caches: dict[Any, FlatCache] = {}

    def context(self, batch: StepBatch, sequences: Sequence[Any]) -> ForwardContext:
        caches = [self._caches.setdefault(s, FlatCache()) for s in sequences]
        return FlatContext(self._layout, caches, batch)

    def arrays(self) -> list[mx.array]:
        return [array for cache in self._caches.values() for array in cache.arrays()]


class PagedRows:
    """A state store, and no pools."""

    def __init__(self, layout: CacheLayout = LAYOUT) -> None:
        self._layout = layout
        self.store = StateStore()

    def context(self, batch: StepBatch, sequences: Sequence[Any]) -> ForwardContext:
        states = self.store.begin(batch, sequences)
        return PagedStep(self._layout, [], [], 16, [], states).context(batch)

    def arrays(self) -> list[mx.array]:
        return self.store.arrays()


KINDS: Mapping[str, Any] = {"flat": FlatRows, "paged": PagedRows}


@pytest.fixture(params=KINDS)
def rows(request: pytest.FixtureRequest) -> Any:
    """Each kind of storage in turn."""
    return KINDS[request.param]()


@attrs.define(eq=False)
class Run:
    """Sequences that advance in steps, each step started after the next one was built.

    Attributes:
        rows: The storage under test.
        outputs: Of each sequence since it last began, as built.
    """

    rows: Any
    outputs: dict[str, list[mx.array]] = attrs.field(factory=dict)
    _known: dict[str, Any] = attrs.field(factory=dict)

    def restart(self, name: str) -> None:
        """Begin anew at position 0, under another sequence object, as after a preemption."""
        self._known.pop(name, None)
        self.outputs.pop(name, None)

    def position(self, name: str) -> int:
        return sum(len(x) for x in self.outputs.get(name, []))

    def step(self, lengths: Mapping[str, int]) -> None:
        """Advance sequences by so many tokens."""
        names = sorted(lengths, key=lambda name: lengths[name] > 1)
        inputs = [
            RowInput(start, tokens(name, start + lengths[name])[start:])
            for name, start in zip(names, map(self.position, names), strict=True)
        ]
        batch = build_step_batch(inputs, None)
        sequences = [self._known.setdefault(name, Owner()) for name in names]
        x = forward(batch, self.rows.context(batch, sequences))
        arrays = [x, *self.rows.arrays()]
        mx.synchronize()
        mx.async_eval(arrays)
        for name, segment in zip(names, batch.segments, strict=True):
            part = x[segment.start : segment.start + segment.length]
            self.outputs.setdefault(name, []).append(part)

    def check(self) -> None:
        """Compare all outputs with the naive loop."""
        for name, parts in self.outputs.items():
            actual = mx.concatenate(parts)
            expected = naive(tokens(name, len(actual)))
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4, err_msg=name)


def tokens(name: str, length: int) -> list[int]:
    return [(ord(name) * 7 + i * i * 3 + i) % 50 for i in range(length)]


steps = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from("abcde"), st.sampled_from([1, 1, 1, 1, 2, 5]), min_size=1
        ),
        st.sets(st.sampled_from("abcde"), max_size=1),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(steps)
def test_any_schedule_is_the_naive_loop(
    kind: str, steps: list[tuple[dict[str, int], set[str]]]
) -> None:
    """GR-5: slices, waves, joins, leaves and restarts change no sequence's result."""
    run = Run(KINDS[kind]())
    for lengths, restarted in steps:
        for name in restarted:
            run.check()
            run.restart(name)
        run.step(lengths)

    run.check()


def test_a_wave_that_stays_together_is_not_gathered() -> None:
    """GR-5: the states that one step computed are the next step's inputs as they are."""
    rows = PagedRows()
    sequences = [Owner() for _ in range(3)]
    seen: list[State] = []

    def spy(inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
        seen.append(state)
        out, after = moving_sum(inputs, state)
        seen.append(after)
        return out, after

    for position in range(2):
        batch = build_step_batch([RowInput(position, [7])] * 3, None)
        context = rows.context(batch, sequences)
        context.scan(0, (mx.ones((3, DIMS)),), spy)

    assert all(a is b for a, b in zip(seen[1], seen[2], strict=True))


def test_the_step_gets_the_wave_stacked_and_each_slice_alone() -> None:
    """GR-5: decode rows are one call of L = 1, a slice is a call of N = 1."""
    shapes: list[Any] = []

    def spy(inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
        shapes.append([x.shape for x in (*inputs, *state)])
        return inputs[1], state

    rows = [RowInput(0, [1]), RowInput(0, [1]), RowInput(0, [1, 2, 3]), RowInput(0, [1, 2])]
    batch = build_step_batch(rows, None)
    context = PagedRows().context(batch, [Owner() for _ in rows])
    x, y = mx.zeros((7, DIMS)), mx.arange(14).reshape(7, 2, 1)
    out = context.scan(0, (x, y), spy)

    assert shapes == [
        [(2, 1, 4), (2, 1, 2, 1), (2, 3, 4), (2, 4)],
        [(1, 3, 4), (1, 3, 2, 1), (1, 3, 4), (1, 4)],
        [(1, 2, 4), (1, 2, 2, 1), (1, 3, 4), (1, 4)],
    ]
    assert mx.array_equal(out, y)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_states_are_of_the_declared_dtypes(rows: Any, dtype: mx.Dtype) -> None:
    """GR-5: a tensor without a dtype has the compute dtype, one with a dtype keeps it."""
    spec = RecurrentState([StateTensor("a", (2,)), StateTensor("b", (2,), "float32")])
    rows = type(rows)(layer_routes([spec]))
    batch, sequence = build_step_batch([RowInput(0, [1, 2])], None), Owner()
    found: list[mx.Dtype] = []

    def spy(inputs: tuple[mx.array, ...], state: State) -> tuple[mx.array, State]:
        found.extend(tensor.dtype for tensor in state)
        return inputs[0], state

    rows.context(batch, [sequence]).scan(0, (mx.zeros((2, 3), dtype),), spy)

    assert found == [dtype, mx.float32]


def broken_steps() -> Iterator[Any]:
    yield "dtype", lambda inputs, state: (inputs[0], (state[0].astype(mx.float16), state[1]))
    yield "shape", lambda inputs, state: (inputs[0], (state[0], state[1][:, :2]))
    yield "number", lambda inputs, state: (inputs[0], state[:1])


@pytest.mark.parametrize("step", [pytest.param(step, id=name) for name, step in broken_steps()])
def test_a_state_that_is_not_the_declared_one_is_refused(rows: Any, step: Any) -> None:
    """GR-1: a step that returns another shape, dtype or number of tensors is an error."""
    context = rows.context(build_step_batch([RowInput(0, [1, 2])], None), [Owner()])

    with pytest.raises(CacheMisuseError, match=r"layer 2: .* declared is \(1, 3, 4\) float32"):
        context.scan(2, (mx.zeros((2, DIMS)),), step)


def test_a_layer_is_scanned_once_a_step(rows: Any) -> None:
    """GR-5: a second scan would add the same tokens twice."""
    context = rows.context(build_step_batch([RowInput(0, [1, 2])], None), [Owner()])
    context.scan(0, (mx.zeros((2, DIMS)),), moving_sum)

    with pytest.raises(CacheMisuseError, match="scan layer 0"):
        context.scan(0, (mx.zeros((2, DIMS)),), moving_sum)


def test_a_layer_without_a_state_is_not_scanned(rows: Any) -> None:
    """GR-1: a scan that does not fit its layer's route is an error."""
    context = rows.context(build_step_batch([RowInput(0, [1, 2])], None), [Owner()])

    with pytest.raises(CacheMisuseError, match="layer 1 has no state: its route is Uncached"):
        context.scan(1, (mx.zeros((2, DIMS)),), moving_sum)


def test_attention_does_not_fit_a_recurrent_layer(rows: Any) -> None:
    """GR-1: a recurrent layer has no keys to attend to."""
    rows = type(rows)(layer_routes([STATE, FullAttention(1, 8)]))
    context = rows.context(build_step_batch([RowInput(0, [1, 2])], None), [Owner()])
    x = mx.zeros((2, 1, 8))

    with pytest.raises(CacheMisuseError, match="layer 0 has no cache: its route is Recurrent"):
        context.attend(0, x, x, x, scoring=Scoring(1.0))


@pytest.mark.parametrize("position", [1, 3, 4])
def test_a_step_at_another_position_is_refused(rows: Any, position: int) -> None:
    """GR-5: a state is used at just the position that it sums up to, or not at all."""
    sequence = Owner()
    first = rows.context(build_step_batch([RowInput(0, [1, 2])], None), [sequence])
    forward(build_step_batch([RowInput(0, [1, 2])], None), first)
    batch = build_step_batch([RowInput(position, [1])], None)

    with pytest.raises(CacheMisuseError, match=f"at position {position}"):
        forward(batch, rows.context(batch, [sequence]))
