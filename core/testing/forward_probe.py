"""One step of a family's `forward` on contiguous caches, with a record of its calls."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..catalogue import Family
from ..contract.cache_spec import CacheLayout, Uncached
from ..contract.forward import ForwardContext, RopeSpec, ScanStep, Scoring
from ..contract.heads import Projected
from ..forward.flat_context import FlatContext
from ..forward.step_batch import RowInput, build_step_batch
from ..pools.flat_cache import FlatCache


@attrs.frozen(eq=False)
class RecordingContext:
    """A context that records the calls of layers, in order.

    Attributes:
        inner: The context that does the work.
        calls: Index of each layer that attended or scanned.
    """

    inner: ForwardContext
    calls: list[int] = attrs.field(factory=list)

    def attend(
        self,
        layer: int,
        q: mx.array,
        k: mx.array | None,
        v: mx.array | None,
        scoring: Scoring,
    ) -> mx.array:
        """Record the call and attend; see `ForwardContext.attend`."""
        self.calls.append(layer)
        return self.inner.attend(layer, q, k, v, scoring)

    def attend_projected(self, layer: int, projected: Projected, scoring: Scoring) -> mx.array:
        """Record the call and attend; see `ForwardContext.attend_projected`."""
        self.calls.append(layer)
        return self.inner.attend_projected(layer, projected, scoring)

    def scan(self, layer: int, inputs: tuple[mx.array, ...], step: ScanStep) -> mx.array:
        """Record the call and scan; see `ForwardContext.scan`."""
        self.calls.append(layer)
        return self.inner.scan(layer, inputs, step)

    def rope(self, x: mx.array, spec: RopeSpec) -> mx.array:
        """Rotate; see `ForwardContext.rope`."""
        return self.inner.rope(x, spec)


@attrs.frozen(eq=False)
class Stepped:
    """Results of a step.

    Attributes:
        logits: `[R, V]`, float32 and evaluated, of the last token of each row.
        calls: Index of each layer that attended or scanned, in the order of the calls.
    """

    logits: mx.array
    calls: list[int]


def step(
    family: Family, layout: CacheLayout, model: nn.Module, rows: Sequence[Sequence[int]]
) -> Stepped:
    """Compute one first step of several sequences; rows with one token come first."""
    inputs = [RowInput(0, ids) for ids in rows]
    batch = build_step_batch(inputs, None)
    context = RecordingContext(FlatContext(layout, [FlatCache() for _ in rows], batch))
    output = family.forward(model, batch, context)
    assert output.logits is not None  # each row wants the logits of its last token
    logits = output.logits.astype(mx.float32)
    mx.eval(logits)
    return Stepped(logits, context.calls)


def cached_layers(layout: CacheLayout) -> list[int]:
    """Return the layers that must call their context once a step."""
    return [i for i, route in enumerate(layout.routes) if not isinstance(route, Uncached)]
