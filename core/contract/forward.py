"""Inputs, outputs and cache access of a family's `forward`.

A step computes `T` tokens at once: first the decode rows, one token each, then prefill
slices. A family gets token ids, positions and a context. Pages, masks and cache kinds stay
hidden behind the context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol, TypeAlias

import attrs
import mlx.core as mx

from ..metal.attention.scoring import Scoring as Scoring
from .heads import Projected
from .heads import RopeSpec as RopeSpec
from .tap import FINAL as FINAL
from .tap import Tap as Tap
from .wave import Wave as Wave


@attrs.frozen
class Segment:
    """Consecutive tokens of one sequence inside a step.

    Attributes:
        start: Index in the step of the segment's first token, `0 <= start < T`.
        length: Tokens; 1 for a decode row.
        position: Absolute position of the segment's first token.
    """

    start: int
    length: int
    position: int


@attrs.frozen(eq=False)
class StepBatch:
    """The tokens of one step.

    Attributes:
        ids: Token ids `[T]`, int32. Ids of decode rows may still be unevaluated.
        positions: Absolute positions `[T]`, int32.
        segments: The step's segments in token order: wave by wave, then prefill slices.
        waves: Leading segments of equal length, by ascending length. Decode rows have one
            token; rows that verify k drafts have 1 + k.
        logit_rows: Indices `[R]`, int32 and strictly ascending, of the tokens whose logits are
            wanted.
        taps: Places whose hidden states are wanted; empty in most steps.
        hidden_rows: Indices `[H]`, int32 and strictly ascending, of the tokens whose hidden
            states are wanted; None without taps.
        rope_positions: Rotary positions `[A, T]`, int32, A = 1 or 3 axes, where they differ
            from the cache positions in `positions`; None where both are equal.

    Raises:
        ValueError: Taps without rows, or rotary positions of another shape.
    """

    ids: mx.array
    positions: mx.array
    segments: tuple[Segment, ...]
    waves: tuple[Wave, ...]
    logit_rows: mx.array
    taps: tuple[Tap, ...] = ()
    hidden_rows: mx.array | None = None
    rope_positions: mx.array | None = None

    def __attrs_post_init__(self) -> None:
        if bool(self.taps) != (self.hidden_rows is not None):
            raise ValueError("taps and hidden_rows must be given together")
        rope, num_tokens = self.rope_positions, self.ids.shape[0]
        if rope is not None and rope.shape not in ((1, num_tokens), (3, num_tokens)):
            raise ValueError(
                f"rope_positions must be [1, {num_tokens}] or [3, {num_tokens}], "
                f"got {list(rope.shape)}"
            )

    @property
    def rotary(self) -> mx.array:
        """Positions for the rotary embedding, `[T]` or `[A, T]`."""
        return self.positions if self.rope_positions is None else self.rope_positions

    @property
    def num_decode_rows(self) -> int:
        """Decode rows among the segments, one token each; decode rows come first."""
        decodes = bool(self.waves) and self.waves[0].query_len == 1
        return self.waves[0].num_rows if decodes else 0

    @property
    def num_wave_rows(self) -> int:
        """Segments that belong to a wave."""
        return sum(wave.num_rows for wave in self.waves)


_NOTHING: Mapping[Tap, mx.array] = MappingProxyType({})


@attrs.frozen(eq=False)
class ForwardOutput:
    """The result of a family's `forward`.

    Attributes:
        logits: Logits `[R, vocab_size]` of `StepBatch.logit_rows`; None for `R = 0`.
        hidden: Hidden states `[H, D]` of `StepBatch.hidden_rows` at each of `StepBatch.taps`,
            in the compute dtype; empty without taps.
    """

    logits: mx.array | None
    hidden: Mapping[Tap, mx.array] = _NOTHING


State: TypeAlias = tuple[mx.array, ...]
"""Tensors `[N, *shape]` of a layer's `RecurrentState`, in the order of its spec."""

ScanStep: TypeAlias = Callable[[tuple[mx.array, ...], State], tuple[mx.array, State]]
"""Maps inputs `[N, L, …]` and the prior state to outputs `[N, L, …]` and the next state."""


class ForwardContext(Protocol):
    """A model's access to the cache during one step."""

    def attend(
        self,
        layer: int,
        q: mx.array,
        k: mx.array | None,
        v: mx.array | None,
        scoring: Scoring,
    ) -> mx.array:
        """Store the step's keys and values, then attend each token to its own sequence.

        Call `attend` once a layer, in layer order. Attention is causal.

        Args:
            layer: Index of the layer.
            q: Queries `[T, Hq, D]`; `Hq` is a multiple of the layer's key heads.
            k: Keys `[T, Hk, D]`, or None for a layer that reads its anchor's keys.
            v: Values `[T, Hk, Dv]`, or None with `k`.
            scoring: Scale, softcap and sinks of the scores; a layer builds the value once.

        Returns:
            `[T, Hq, Dv]`, in the dtype of `q`.

        Raises:
            CacheMisuseError: The layer owns its cache and `k` or `v` is missing; or the layer
                is an alias and `k` or `v` is given; or heads differ in shape from the layout;
                or the layer, or a later one, was already called in this step.
        """
        ...

    def attend_projected(
        self,
        layer: int,
        projected: Projected,
        scoring: Scoring,
    ) -> mx.array:
        """Apply norms and rotation to projected heads, then `attend`.

        A context may fuse norms, rotation and the store to the cache into one operation.
        Layers with other head operations use `rope` and `attend`.

        Args:
            layer: Index of the layer.
            projected: Queries, keys and values; queries alone for a layer that reads its
                anchor's keys.
            scoring: Scale, softcap and sinks of the scores; a layer builds the value once.

        Returns:
            `[T, Hq, Dv]`, in the dtype of the projections.

        Raises:
            CacheMisuseError: As `attend`.
        """
        ...

    def scan(self, layer: int, inputs: tuple[mx.array, ...], step: ScanStep) -> mx.array:
        """Run a recurrence over each sequence's tokens, and store the new state.

        Call `scan` once a recurrent layer. `step` must be pure: the context may call `step`
        with several rows of one token (decode) or with one row of several tokens (a prefill
        slice), and more than once. A row's result must not depend on other rows.

        Args:
            layer: Index of the layer.
            inputs: Arrays `[T, …]`. The first array has the compute dtype. State tensors
                without a dtype of their own have the compute dtype too.
            step: The recurrence: gets inputs `[N, L, …]` of N sequences and their states
                `[N, *shape]`, zeros before a sequence's first token; returns the output
                `[N, L, …]` and the states after the last token, in their shapes and dtypes.

        Returns:
            `[T, …]`, the outputs in token order.

        Raises:
            CacheMisuseError: The layer has no state; or the layer, or a later one, was already
                called in this step; or the state from `step` differs from the layout.
        """
        ...

    def rope(self, x: mx.array, spec: RopeSpec) -> mx.array:
        """Rotate `x [T, H, D]` at the step's rotary positions; same shape and dtype."""
        ...
