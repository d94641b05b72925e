"""The forward context over contiguous per-sequence caches."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from ..contract.cache_spec import CacheLayout, Owned
from ..contract.forward import RopeSpec, ScanStep, Scoring, Segment, StepBatch
from ..contract.heads import Projected
from ..contract.layer_spec import SlidingWindow
from ..layers.heads import prepare
from ..layers.rope import Rotation
from ..metal.attention.mlx_attention import decode_attention, prefill_attention
from ..pools.flat_cache import FlatCache
from ..pools.scan_calls import ScanCall
from .route import HeadsGiven, StepRoutes
from .scan import scan_rows


class FlatContext:
    """The forward context of one step over contiguous caches.

    Attention and scans run per sequence. Operations outside the context are batched.
    """

    def __init__(
        self, layout: CacheLayout, caches: Sequence[FlatCache], batch: StepBatch
    ) -> None:
        """Prepare a step.

        Args:
            layout: The model's cache layout.
            caches: The cache of each segment's sequence.
            batch: The step's tokens.
        """
        self._layout = layout
        self._routes = StepRoutes(layout)
        self._caches = caches
        self._batch = batch
        self._rope = Rotation(batch.rotary)

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
        """Store keys and values, then attend; see `ForwardContext.attend`."""
        owner = self._routes.attend(layer, HeadsGiven.of(q, k, v))
        spec = self._layout.groups[owner.group]
        window = spec.window if isinstance(spec, SlidingWindow) else None
        parts: list[mx.array] = []
        for segment, cache in zip(self._batch.segments, self._caches, strict=True):
            part = slice(segment.start, segment.start + segment.length)
            new = None if k is None or v is None else (k[part], v[part])
            pages = self._exchange(cache, owner, segment, new)
            parts.append(_attend(segment, q[part], *pages, scoring, window))
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def attend_projected(
        self,
        layer: int,
        projected: Projected,
        scoring: Scoring,
    ) -> mx.array:
        """Make heads, then attend; see `ForwardContext.attend_projected`."""
        q, k, v = prepare(projected, self.rope)
        return self.attend(layer, q, k, v, scoring)

    def _exchange(
        self,
        cache: FlatCache,
        owner: Owned,
        segment: Segment,
        new: tuple[mx.array, mx.array] | None,
    ) -> tuple[mx.array, mx.array]:
        """Store a segment's new keys and values, if any; return its visible keys and values."""
        slot, spec = (owner.group, owner.ordinal), self._layout.groups[owner.group]
        if isinstance(spec, SlidingWindow):
            window = cache.window(slot, spec)
            if new is not None:
                window.write(*new, segment.position)
            return window.read(segment.length)
        if new is not None:
            cache.write(slot, *new, segment.position)
        return cache.read(slot, segment.position + segment.length)

    def scan(self, layer: int, inputs: tuple[mx.array, ...], step: ScanStep) -> mx.array:
        """Run a recurrence; see `ForwardContext.scan`."""
        spec, compute_dtype = self._routes.scan(layer), inputs[0].dtype
        parts: list[mx.array] = []
        verifying = self._batch.num_wave_rows
        for i, (segment, cache) in enumerate(
            zip(self._batch.segments, self._caches, strict=True)
        ):
            before = cache.read_state(layer, spec, segment.position, compute_dtype)
            each = segment.length > 1 and i < verifying
            call = ScanCall(slice(i, i + 1), segment.start, 1, segment.length, each=each)
            out, states = scan_rows(layer, inputs, call, before, step)
            cache.write_states(layer, states, segment.position + segment.length)
            parts.append(out)
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)


def _attend(
    segment: Segment,
    q: mx.array,
    keys: mx.array,
    values: mx.array,
    scoring: Scoring,
    window: int | None,
) -> mx.array:
    if segment.length > 1:
        return prefill_attention(q, keys, values, scoring, window=window)
    mask = mx.zeros((1, 1, 1, 1, keys.shape[1]))
    return decode_attention(q, keys[None], values[None], mask, scoring)
