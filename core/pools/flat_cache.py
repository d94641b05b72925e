"""The contiguous twin of the block-paged cache: one pair of arrays a layer and sequence.

Nothing is shared between sequences and nothing outlives them; it exists so that the paged
path has something to be compared with, and to be rolled back to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import mlx.core as mx

from ..contract.forward import State
from ..contract.layer_spec import RecurrentState, SlidingWindow
from ..errors import CacheExhaustedError, CacheMisuseError
from ..ids import SaltDomain, SequenceId
from .flat_window import FlatWindow
from .state_store import zero_state

GROWTH_TOKENS = 256
"""Arrays grow by multiples of this many tokens."""


class FlatCache:
    """What the layers keep of one sequence.

    Attention layers: keys and values `[Hk, capacity, D]`, written at a position. Layers with
    a window: the newest positions. Recurrent layers: the state of one position, replaced as
    a whole.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], tuple[mx.array, mx.array]] = {}
        self._windows: dict[tuple[int, int], FlatWindow] = {}
        self._states: dict[int, tuple[int, State]] = {}  # layer -> position, state

    def write(self, slot: tuple[int, int], k: mx.array, v: mx.array, position: int) -> None:
        """Write `k [L, Hk, D]` and `v [L, Hk, Dv]` at `[position, position + L)`.

        Args:
            slot: The layer's group and ordinal.
            k: Keys.
            v: Values.
            position: Absolute position of the first token, at most what was written so far.
        """
        end = position + k.shape[0]
        keys, values = self._arrays.get(slot) or (_empty_like(k), _empty_like(v))
        if end > keys.shape[1]:
            keys, values = _grown(keys, end), _grown(values, end)
        keys[:, position:end] = k.swapaxes(0, 1)
        values[:, position:end] = v.swapaxes(0, 1)
        self._arrays[slot] = (keys, values)

    def read(self, slot: tuple[int, int], end: int) -> tuple[mx.array, mx.array]:
        """Return keys `[Hk, end, D]` and values `[Hk, end, Dv]` of positions `[0, end)`."""
        keys, values = self._arrays[slot]
        return keys[:, :end], values[:, :end]

    def window(self, slot: tuple[int, int], spec: SlidingWindow) -> FlatWindow:
        """Return what a layer keeps that sees a window only."""
        return self._windows.setdefault(slot, FlatWindow(spec))

    def write_state(self, layer: int, state: State, position: int) -> None:
        """Keep a layer's state, the sum of positions `[0, position)`."""
        self._states[layer] = (position, state)

    def read_state(
        self, layer: int, spec: RecurrentState, position: int, compute_dtype: mx.Dtype
    ) -> State:
        """Return a layer's state `[1, *shape]` at `position`; zeros at 0.

        Raises:
            CacheMisuseError: The state that is kept is the one of another position.
        """
        known, state = self._states.get(layer) or (0, zero_state(spec, 1, compute_dtype))
        if known != position:
            raise CacheMisuseError(
                f"scan layer {layer} at position {position}", f"its state is that of {known}"
            )
        return state

    def arrays(self) -> list[mx.array]:
        """Return the arrays as they are now, to be evaluated with a step."""
        states = (state for _, state in self._states.values())
        windows = (window.arrays() for window in self._windows.values())
        return [a for kept in (*self._arrays.values(), *windows, *states) for a in kept]


def _empty_like(x: mx.array) -> mx.array:
    """Return `[Hk, 0, D]` for `x [L, Hk, D]`."""
    return mx.zeros((x.shape[1], 0, x.shape[2]), x.dtype)


def _grown(array: mx.array, num_tokens: int) -> mx.array:
    capacity = -(-num_tokens // GROWTH_TOKENS) * GROWTH_TOKENS
    heads, size, dims = array.shape
    return mx.concatenate(
        [array, mx.zeros((heads, capacity - size, dims), array.dtype)], axis=1
    )


@attrs.define(eq=False)
class FlatSequence:
    """The cache side of a request on the flat path.

    Attributes:
        id: Its name.
        cursor: Positions handed to steps.
        frontier: Committed positions.
        arrays: Its keys and values.
        released: Whether it was given back.
    """

    id: SequenceId
    cursor: int = 0
    frontier: int = 0
    arrays: FlatCache = attrs.field(factory=FlatCache)
    released: bool = False


@attrs.frozen
class NoHit:
    """The only hit of a cache that shares nothing."""

    length: int = 0
    awaited: int = 0
    unbacked: int = 0


class FlatCoordinator:
    """Bookkeeping of the flat path: a budget of tokens, counted in blocks like the paged one.

    It has the methods of the paged coordinator that the scheduler needs; nothing is ever
    found and nothing published.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.max_usable_blocks = num_blocks
        self.num_publications = 0
        self._block_size = block_size
        self._live: dict[SequenceId, FlatSequence] = {}

    @property
    def num_available(self) -> int:
        """Blocks' worth of tokens that may still be written."""
        return self.max_usable_blocks - sum(self._blocks_held(s) for s in self._live.values())

    @property
    def max_concurrent_sequences(self) -> int:
        """Sequences that can have a block's worth of tokens each."""
        return self.max_usable_blocks

    @property
    def max_tokens(self) -> int:
        """The longest sequence that the budget allows."""
        return self.max_usable_blocks * self._block_size

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _blocks_held(self, sequence: FlatSequence) -> int:
        return self._blocks_for(sequence.cursor)

    def num_reserved(self, wanted: Iterable[tuple[FlatSequence, int]]) -> int:
        """Return the blocks' worth of what sequences lack for so many tokens each."""
        return sum(
            max(0, self._blocks_for(num_tokens) - self._blocks_held(sequence))
            for sequence, num_tokens in wanted
        )

    def admits(
        self,
        hit: NoHit,
        num_tokens: int,
        wanted: Iterable[tuple[FlatSequence, int]],
        watermark: float,
    ) -> bool:
        """Return whether the budget holds for one more sequence."""
        needed = self._blocks_for(num_tokens) + self.num_reserved(wanted)
        return needed + int(watermark * self.max_usable_blocks) <= self.num_available

    def open(
        self,
        sequence_id: SequenceId,
        tokens: Sequence[int],
        *,
        salt: SaltDomain,
        owner: str = "",
    ) -> FlatSequence:
        """Return a new sequence."""
        return FlatSequence(sequence_id)

    def match_prefix(self, sequence: FlatSequence) -> NoHit:
        """Return the empty hit."""
        return NoHit()

    def attach(self, sequence: FlatSequence, hit: NoHit) -> None:
        """Make the sequence live."""
        self._live[sequence.id] = sequence

    def reserve(self, sequence: FlatSequence, n: int) -> None:
        """Move the cursor if the budget holds.

        Raises:
            CacheExhaustedError: It does not.
        """
        needed = self._blocks_for(sequence.cursor + n) - self._blocks_held(sequence)
        if needed > self.num_available:
            raise CacheExhaustedError(needed, self.num_available)
        sequence.cursor += n

    def reserve_restore(self, sequence: FlatSequence, n: int) -> None:
        """Do as `reserve`: nothing of it is ever asked for."""
        self.reserve(sequence, n)

    def record(self, sequence: FlatSequence, tokens: Sequence[int]) -> None:
        """Do nothing: no block is named after its tokens."""

    def commit(self, sequence: FlatSequence, n: int) -> None:
        """Move the frontier.

        Raises:
            CacheMisuseError: Beyond the cursor.
        """
        if sequence.frontier + n > sequence.cursor:
            raise CacheMisuseError("commit", f"only {sequence.cursor} positions are reserved")
        sequence.frontier += n

    def rollback(self, sequence: FlatSequence, n: int) -> None:
        """Move the cursor back, to the frontier at most.

        Raises:
            CacheMisuseError: It would pass the frontier.
        """
        if sequence.cursor - n < sequence.frontier:
            raise CacheMisuseError("roll back", f"the frontier is at {sequence.frontier}")
        sequence.cursor -= n

    def shared_prefix(self, one: FlatSequence, other: FlatSequence) -> int:
        """Return 0: nothing is shared."""
        return 0

    def promise(self, sequence: FlatSequence, rungs: Sequence[int]) -> None:
        """Do nothing: no state is kept."""

    def reach(self, sequence: FlatSequence, state: Any, *, rung: bool) -> None:
        """Do nothing: no state is kept."""

    def rungs(self, sequence: FlatSequence) -> list[int]:
        """Return none: no state is kept."""
        return []

    def publish(self, sequence: FlatSequence) -> int:
        """Return 0: nothing is shared."""
        return 0

    def release(self, sequence: FlatSequence) -> None:
        """Give the sequence back.

        Raises:
            CacheMisuseError: It was given back before.
        """
        if sequence.released:
            raise CacheMisuseError("release", "the sequence was released before")
        sequence.released = True
        self._live.pop(sequence.id, None)
