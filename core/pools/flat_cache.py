"""Contiguous caches: one pair of arrays per layer and sequence.

Sequences share nothing, and their arrays are freed with them. The flat path is the reference
of the paged path, and its fallback.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..contract.forward import State
from ..contract.layer_spec import RecurrentState, SlidingWindow
from ..errors import CacheMisuseError
from .flat_window import FlatWindow
from .state_store import zero_state

GROWTH_TOKENS = 256
"""Arrays grow by multiples of this many tokens."""


class FlatCache:
    """The cache of one sequence.

    Attention layers keep keys and values `[Hk, capacity, D]` of all positions. Layers with a
    window keep the newest positions. Recurrent layers keep the states of the last step.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, int], tuple[mx.array, mx.array]] = {}
        self._windows: dict[tuple[int, int], FlatWindow] = {}
        # layer -> position -> state, of the positions that the last step kept
        self._states: dict[int, dict[int, State]] = {}

    def write(self, slot: tuple[int, int], k: mx.array, v: mx.array, position: int) -> None:
        """Write `k [L, Hk, D]` and `v [L, Hk, Dv]` at `[position, position + L)`.

        Args:
            slot: The layer's group and ordinal.
            k: Keys.
            v: Values.
            position: Absolute position of the first token, at most the number of positions
                written so far.
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
        """Return the window of a layer; an empty one at the first call."""
        return self._windows.setdefault(slot, FlatWindow(spec))

    def write_states(self, layer: int, states: Sequence[State], position: int) -> None:
        """Keep a layer's states after the last tokens of a step.

        Args:
            layer: Index of the layer.
            states: The states after each of the last tokens, or after the last token only.
            position: Position behind the last token.
        """
        first = position - len(states) + 1
        self._states[layer] = {first + i: state for i, state in enumerate(states)}

    def read_state(
        self, layer: int, spec: RecurrentState, position: int, compute_dtype: mx.Dtype
    ) -> State:
        """Return a layer's state `[1, *shape]` at `position`; zeros at 0.

        Raises:
            CacheMisuseError: The state at `position` is not kept.
        """
        kept = self._states.get(layer) or {0: zero_state(spec, 1, compute_dtype)}
        if position not in kept:
            raise CacheMisuseError(
                f"scan layer {layer} at position {position}",
                f"its state is that of {max(kept)}",
            )
        return kept[position]

    def rewind(self, position: int) -> None:
        """Take the cache back to an earlier position of its last step."""
        for window in self._windows.values():
            window.rewind(position)

    def arrays(self) -> list[mx.array]:
        """Return the present arrays, to be evaluated with a step."""
        states = (state for kept in self._states.values() for state in kept.values())
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
