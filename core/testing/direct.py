"""A family's `forward` without an engine: one sequence, step by step, on either path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..contract.cache_spec import CacheLayout
from ..contract.forward import ForwardContext, ForwardOutput, StepBatch, Tap
from ..forward.flat_context import FlatContext
from ..forward.paged_step import PagedStep
from ..forward.step_batch import RowInput, build_step_batch
from ..ids import SequenceId
from ..pools.device_tables import DeviceTables
from ..pools.flat_cache import FlatCache
from ..pools.layer_pool import LayerPool
from ..pools.state_store import StateStore

if TYPE_CHECKING:
    from ..catalogue import Family

BLOCK_SIZE = 16


class _FlatCaches:
    """The contiguous cache of one sequence."""

    def __init__(self, layout: CacheLayout) -> None:
        self._layout, self._cache = layout, FlatCache()

    def context(self, batch: StepBatch) -> ForwardContext:
        return FlatContext(self._layout, [self._cache], batch)

    def arrays(self) -> list[mx.array]:
        return self._cache.arrays()


class _Pools:
    """The pools of one sequence, with blocks in reverse order."""

    def __init__(self, layout: CacheLayout, num_tokens: int) -> None:
        num_blocks = -(-num_tokens // BLOCK_SIZE)
        self._layout = layout
        self._pools = [
            LayerPool(
                spec, layout.num_group_layers(group), num_blocks + 1, BLOCK_SIZE, mx.float32
            )
            for group, spec in enumerate(layout.groups)
        ]
        self._tables = [DeviceTables(1, num_blocks) for _ in layout.groups]
        for table in self._tables:
            table.update((0, index, num_blocks - index) for index in range(num_blocks))
        self._states, self._sequence = StateStore(), SequenceId(1)

    def context(self, batch: StepBatch) -> ForwardContext:
        rows = self._states.begin(batch, [self._sequence]) if self._layout.states else []
        step = PagedStep(self._layout, self._pools, self._tables, BLOCK_SIZE, [0], rows)
        return step.context(batch)

    def arrays(self) -> list[mx.array]:
        pools = [array for pool in self._pools for array in pool.arrays()]
        return pools + self._states.arrays()


class DirectRun:
    """Steps of one sequence, each evaluated at once."""

    def __init__(
        self,
        family: Family,
        model: nn.Module,
        layout: CacheLayout,
        num_tokens: int,
        *,
        paged: bool,
    ) -> None:
        """Begin at position 0.

        Args:
            family: The family under test.
            model: The model, float32.
            layout: The model's cache layout.
            num_tokens: Capacity of the cache, in tokens.
            paged: True for pages, False for a contiguous cache.
        """
        self._family, self._model = family, model
        self._cache = _Pools(layout, num_tokens) if paged else _FlatCaches(layout)
        self._position = 0

    def step(
        self,
        ids: Sequence[int],
        *,
        taps: Sequence[Tap] = (),
        hidden_rows: Sequence[int] = (),
        logits: Literal["all", "last", "none"] = "last",
    ) -> ForwardOutput:
        """Compute the next tokens.

        Args:
            ids: The tokens.
            taps: Places of the wanted hidden states.
            hidden_rows: Tokens of the wanted hidden states, ascending.
            logits: Tokens of the wanted logits.
        """
        num_logits = {"all": len(ids), "last": 1, "none": 0}[logits]
        batch = build_step_batch([RowInput(self._position, ids, num_logits=num_logits)], None)
        if taps:
            rows = mx.array([*hidden_rows], mx.int32)
            batch = attrs.evolve(batch, taps=tuple(taps), hidden_rows=rows)
        output = self._family.forward(self._model, batch, self._cache.context(batch))
        mx.eval(output.logits, *output.hidden.values(), *self._cache.arrays())
        self._position += len(ids)
        return output
