"""Recurrent states between steps. The states of a wave stay stacked in one array per tensor.

Successive waves mostly have the same rows, so a wave reads the stack of the previous wave
directly. Rows are gathered only when requests join or leave. States are never written in
place: each step makes a new stack, and an old stack is freed with its last row. A step may
therefore be built on states that the device is still computing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import attrs
import mlx.core as mx
import numpy as np

from ..contract.cache_spec import RecurrentState
from ..contract.forward import Segment, State, StepBatch
from ..errors import CacheMisuseError
from ..ids import SequenceId
from .scan_calls import scan_calls


def zero_state(spec: RecurrentState, num_rows: int, compute_dtype: mx.Dtype) -> State:
    """Return the states at position 0: zeros `[num_rows, *shape]` for each tensor."""
    return tuple(
        mx.zeros(
            (num_rows, *tensor.shape),
            getattr(mx, tensor.dtype) if tensor.dtype else compute_dtype,
        )
        for tensor in spec.tensors
    )


class StateStack:
    """The states `[N, *shape]` of the rows of a scan call, by layer.

    Attributes:
        num_rows: `N`.
        layers: Layer -> state; filled while the step's graph is built.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.layers: dict[int, State] = {}

    def arrays(self) -> list[mx.array]:
        """Return all tensors in the order of layers."""
        return [t for layer in sorted(self.layers) for t in self.layers[layer]]

    def take(self, row: int) -> StateStack:
        """Return a copy of one row as a new stack, so that the other rows can be freed."""
        alone, index = StateStack(1), mx.array([row])
        alone.layers = {
            layer: tuple(tensor[index] for tensor in state)
            for layer, state in self.layers.items()
        }
        return alone


@attrs.frozen(eq=False)
class _Place:
    """The location of a sequence's state.

    Attributes:
        stack: The stack; None for zeros.
        row: The row in the stack.
        position: The position of the state: the number of tokens before it.
        step: The number of the step that computes the state.
    """

    stack: StateStack | None
    row: int
    position: int
    step: int


@attrs.frozen(eq=False)
class _Run:
    """Consecutive rows of a step whose states come from one stack.

    Attributes:
        stack: The stack; None for zeros.
        num_rows: Number of rows.
        indices: Indices of the rows in the stack; None for the whole stack in order.
    """

    stack: StateStack | None
    num_rows: int
    indices: mx.array | None

    @classmethod
    def of(cls, stack: StateStack | None, rows: list[int]) -> _Run:
        """Return the run of the given rows of a stack."""
        whole = stack is None or rows == list(range(stack.num_rows))
        return cls(stack, len(rows), None if whole else mx.array(rows))

    def read(self, layer: int, spec: RecurrentState, compute_dtype: mx.Dtype) -> State:
        if self.stack is None:
            return zero_state(spec, self.num_rows, compute_dtype)
        state = self.stack.layers.get(layer)
        if state is None:
            raise CacheMisuseError(f"scan layer {layer}", "the step before did not scan it")
        return state if self.indices is None else tuple(t[self.indices] for t in state)


@attrs.frozen(eq=False)
class StateRows:
    """The states of one scan call: runs to read from, and stacks to write to.

    There is one target stack per token whose state is kept.
    """

    _runs: tuple[_Run, ...]
    _targets: tuple[StateStack, ...]

    def read(self, layer: int, spec: RecurrentState, compute_dtype: mx.Dtype) -> State:
        """Return the rows' states `[N, *shape]` before the step.

        Raises:
            CacheMisuseError: The previous step did not scan the layer, or the present step
                scanned the layer before.
        """
        if layer in self._targets[-1].layers:
            raise CacheMisuseError(f"scan layer {layer}", "it was scanned in this step before")
        parts = [run.read(layer, spec, compute_dtype) for run in self._runs]
        if len(parts) == 1:
            return parts[0]
        return tuple(mx.concatenate(list(tensors)) for tensors in zip(*parts, strict=True))

    def write(self, layer: int, states: Sequence[State]) -> None:
        """Keep the rows' states `[N, *shape]`: after each token, or after the last token."""
        for target, state in zip(self._targets, states, strict=True):
            target.layers[layer] = state


class StateStore:
    """The states of all live sequences. Owned by the engine thread.

    At position 0 a sequence starts with zeros, even if a state is stored. At any other
    position the stored state must be the state of exactly that position, or the step is
    refused. Rows that verify drafts keep the state after each token until the sequence's next
    step.
    """

    def __init__(self) -> None:
        self._places: dict[SequenceId, _Place] = {}
        self._trails: dict[SequenceId, list[_Place]] = {}
        self._num_steps = 0

    @property
    def num_rows(self) -> int:
        """Number of sequences with a state."""
        return len(self._places)

    @property
    def num_bytes(self) -> int:
        """Bytes of all stacks."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        """Return the present arrays, to be evaluated with a step."""
        places = [*self._places.values(), *itertools.chain(*self._trails.values())]
        stacks = {id(p.stack): p.stack for p in places if p.stack is not None}
        return [
            tensor
            for stack in stacks.values()
            for state in stack.layers.values()
            for tensor in state
        ]

    def clear(self) -> None:
        """Free every state. Sequences must start at position 0 again."""
        self._places.clear()
        self._trails.clear()

    def snapshot(self, sequence: SequenceId) -> StateStack:
        """Return a sequence's lazy state after the newest step that was built."""
        place = self._places[sequence]
        assert place.stack is not None
        return place.stack if place.stack.num_rows == 1 else place.stack.take(place.row)

    def install(self, sequence: SequenceId, position: int, state: StateStack) -> None:
        """Set a sequence's state at `position` to a kept or restored state."""
        self._places[sequence] = _Place(state, 0, position, self._num_steps)
        self._trails.pop(sequence, None)

    def rewind(self, sequence: SequenceId, position: int) -> None:
        """Take a sequence's state back to an earlier position of its last step.

        A state at or before `position` is not changed.

        Raises:
            CacheMisuseError: The step kept no state at `position`; nothing was changed.
        """
        place, trail = self._places.get(sequence), self._trails.get(sequence, [])
        if place is None or place.position <= position:
            return
        kept = next((earlier for earlier in trail if earlier.position == position), None)
        if kept is None:
            raise CacheMisuseError(
                f"rewind sequence {sequence} to position {position}",
                f"its state is that of position {place.position}, and no other was kept",
            )
        self._places[sequence] = kept
        self._trails.pop(sequence)

    def release(self, sequence: SequenceId) -> None:
        """Free a sequence's state; a sequence without a state is ignored."""
        self._places.pop(sequence, None)
        self._trails.pop(sequence, None)

    def knows(self, sequence: SequenceId) -> bool:
        """Return whether a sequence has a state."""
        return sequence in self._places

    def begin(self, batch: StepBatch, sequences: Sequence[SequenceId]) -> list[StateRows]:
        """Return the states of each scan call: one call per wave, then one per slice.

        The stored states become the states after the step.

        Args:
            batch: The step's tokens.
            sequences: The sequence of each segment.

        Raises:
            CacheMisuseError: A sequence has no state at its position; nothing was changed.
        """
        segments = batch.segments
        sources = [self._source(*pair) for pair in zip(sequences, segments, strict=True)]
        self._separate(sequences)
        self._num_steps += 1
        calls = scan_calls(batch)
        targets = [
            self._advance(sequences[call.rows], segments[call.rows], each=call.each)
            for call in calls
        ]
        return [
            StateRows(_runs(sources[call.rows]), target)
            for call, target in zip(calls, targets, strict=True)
        ]

    def _source(self, sequence: SequenceId, segment: Segment) -> _Place:
        if segment.position == 0:
            return _Place(None, 0, 0, 0)
        place = self._places.get(sequence)
        if place is None or place.position != segment.position:
            known = "no state" if place is None else f"the state of position {place.position}"
            raise CacheMisuseError(
                f"continue at position {segment.position}", f"the sequence has {known}"
            )
        return place

    def _separate(self, sequences: Sequence[SequenceId]) -> None:
        """Copy rows without a part in the last step out of their stacks.

        A single row would keep its whole stack alive. Rows are copied one step late, because
        most rows that leave a wave belong to ended requests and are released soon.
        """
        computed = set(sequences)
        for sequence, place in list(self._places.items()):
            stack, idle = place.stack, place.step < self._num_steps
            if idle and sequence not in computed and stack is not None and stack.num_rows > 1:
                alone = attrs.evolve(place, stack=stack.take(place.row), row=0)
                self._places[sequence] = alone

    def _advance(
        self, sequences: Sequence[SequenceId], segments: Sequence[Segment], *, each: bool
    ) -> tuple[StateStack, ...]:
        """Assign the sequences to rows of new stacks, which the step fills."""
        length = segments[0].length if each else 1
        stacks = tuple(StateStack(len(sequences)) for _ in range(length))
        for row, (sequence, segment) in enumerate(zip(sequences, segments, strict=True)):
            end = segment.position + segment.length
            *trail, self._places[sequence] = (
                _Place(stack, row, end - length + 1 + i, self._num_steps)
                for i, stack in enumerate(stacks)
            )
            self._trails.pop(sequence, None)
            if trail:
                self._trails[sequence] = trail
        return stacks


def _runs(sources: Sequence[_Place]) -> tuple[_Run, ...]:
    by_stack = itertools.groupby(sources, key=lambda place: place.stack)
    return tuple(_Run.of(stack, [place.row for place in run]) for stack, run in by_stack)


def state_bytes(stack: StateStack) -> list[memoryview]:
    """Return copies of the bytes of a stack of one row, one piece per tensor, by layer."""
    plain = [t.view(mx.uint16 if t.itemsize == 2 else mx.uint32) for t in stack.arrays()]
    mx.eval(plain)
    return [memoryview(np.array(tensor).data).cast("B") for tensor in plain]


def state_of_bytes(
    pieces: Sequence[memoryview], layers: Sequence[int], spec: RecurrentState, dtype: mx.Dtype
) -> StateStack:
    """Return the stack of one row that `state_bytes` serialised.

    Args:
        pieces: The bytes of each tensor.
        layers: The recurrent layers, ascending.
        spec: The specification of their states.
        dtype: Compute dtype.
    """
    stack, remaining = StateStack(1), iter(pieces)
    for layer in layers:
        stack.layers[layer] = tuple(
            _tensor(next(remaining), zero) for zero in zero_state(spec, 1, dtype)
        )
    return stack


def _tensor(data: memoryview, like: mx.array) -> mx.array:
    plain = np.frombuffer(data, np.uint16 if like.itemsize == 2 else np.uint32)
    return mx.array(plain).view(like.dtype).reshape(like.shape)
