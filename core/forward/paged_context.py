"""The forward context over block-paged pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from ..contract.cache_spec import CacheLayout, Owned, RecurrentState
from ..contract.forward import RopeSpec, ScanStep, Scoring, State, StepBatch
from ..contract.heads import Projected
from ..layers.rope import Rotation
from ..pools.scan_calls import scan_calls
from .route import HeadsGiven, StepRoutes
from .scan import scan_rows


class PagedAttention(Protocol):
    """Attention of one step over pages."""

    @property
    def in_place(self) -> bool:
        """Whether kernels have made all writes to pages so far."""
        ...

    def attend(
        self,
        owner: Owned,
        q: mx.array,
        k: mx.array | None,
        v: mx.array | None,
        scoring: Scoring,
    ) -> mx.array:
        """Store keys and values in the owner's pages, then attend."""
        ...

    def attend_projected(
        self,
        owner: Owned,
        projected: Projected,
        rotation: Rotation,
        scoring: Scoring,
    ) -> mx.array:
        """Make heads, store keys and values, then attend."""
        ...


class ScanRows(Protocol):
    """The recurrent states of the `N` rows of one scan call."""

    def read(self, layer: int, spec: RecurrentState, compute_dtype: mx.Dtype) -> State:
        """Return the rows' states `[N, *shape]` before the step."""
        ...

    def write(self, layer: int, states: Sequence[State]) -> None:
        """Keep the rows' states: after each token, or after the last token only."""
        ...


class PagedContext:
    """The forward context of one step over block-paged pools and states."""

    def __init__(
        self,
        layout: CacheLayout,
        batch: StepBatch,
        attention: PagedAttention,
        states: Sequence[ScanRows] = (),
    ) -> None:
        """Prepare a step.

        Args:
            layout: The model's cache layout.
            batch: The step's tokens.
            attention: Attention over the step's pages.
            states: The states of each scan call: one call per wave, then one per slice. Empty
                without recurrent layers.
        """
        self._routes = StepRoutes(layout)
        self._batch = batch
        self._attention = attention
        self._states = states
        self._rope = Rotation(batch.rotary)

    @property
    def in_place(self) -> bool:
        """Whether kernels have made all writes to pages so far."""
        return self._attention.in_place

    def rope(self, x: mx.array, spec: RopeSpec) -> mx.array:
        """Rotate `x [T, H, D]` at the step's rotary positions."""
        return self._rope(x, spec)

    def attend(
        self,
        layer: int,
        q: mx.array,
        k: mx.array | None,
        v: mx.array | None,
        scoring: Scoring,
    ) -> mx.array:
        """Store keys and values, attend; see `ForwardContext.attend`."""
        owner = self._routes.attend(layer, HeadsGiven.of(q, k, v))
        return self._attention.attend(owner, q, k, v, scoring)

    def attend_projected(
        self,
        layer: int,
        projected: Projected,
        scoring: Scoring,
    ) -> mx.array:
        """Make heads, store, attend; see `ForwardContext.attend_projected`."""
        owner = self._routes.attend(layer, HeadsGiven.projected(projected))
        return self._attention.attend_projected(owner, projected, self._rope, scoring)

    def scan(self, layer: int, inputs: tuple[mx.array, ...], step: ScanStep) -> mx.array:
        """Run a recurrence; see `ForwardContext.scan`."""
        spec, compute_dtype = self._routes.scan(layer), inputs[0].dtype
        parts: list[mx.array] = []
        for call, rows in zip(scan_calls(self._batch), self._states, strict=True):
            before = rows.read(layer, spec, compute_dtype)
            out, states = scan_rows(layer, inputs, call, before, step)
            rows.write(layer, states)
            parts.append(out)
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)
