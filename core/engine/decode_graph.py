"""Traced decode steps: a step of decode rows is traced once and replayed.

Building a graph in Python, layer by layer, can take the host longer than a GPU takes to
compute the step. Decode steps with equal numbers of rows and equal context bounds have equal
graphs, so later steps replay the trace with other input arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..catalogue import Family
from ..contract.cache_spec import CacheLayout, Recurrent, RecurrentState
from ..contract.forward import Segment, State, StepBatch, Wave
from ..forward.kernel_attention import KernelAttention, StepRows
from ..forward.paged_context import PagedContext
from ..forward.paged_step import PagedStep
from ..log import get_logger
from ..metal.attention.pages import GroupPages
from ..metal.runtime import dispatch

Arrays: TypeAlias = list[mx.array]


class _UnknownPosition:
    """A placeholder for positions; a trace must not depend on values of positions."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("positions of decode rows are arrays: read batch.positions")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = _refuse
    __truediv__ = __floordiv__ = __mod__ = __divmod__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __int__ = __index__ = __float__ = __bool__ = __hash__ = _refuse


@attrs.frozen(eq=False)
class _TracedStates:
    """The recurrent states of the decode rows while a step is traced."""

    before: dict[int, State]
    after: dict[int, State] = attrs.field(factory=dict)

    def read(self, layer: int, spec: RecurrentState, compute_dtype: mx.Dtype) -> State:
        """Return the rows' states before the step."""
        return self.before[layer]

    def write(self, layer: int, states: Sequence[State]) -> None:
        """Keep the rows' states after the step."""
        (self.after[layer],) = states


class DecodeGraph:
    """Computes the logits of decode rows. Owned by the engine thread.

    Attributes:
        num_traces: How often a step was traced.
    """

    def __init__(self, family: Family, model: nn.Module, layout: CacheLayout) -> None:
        self.num_traces = 0
        self._family = family
        self._model = model
        self._layout = layout
        self._recurrent = [
            layer for layer, route in enumerate(layout.routes) if isinstance(route, Recurrent)
        ]
        self._run = mx.compile(self._trace)
        self._works = True
        self._dispatched: dict[tuple[int, ...], dict[str, int]] = {}
        self._log = get_logger("engine")

    def __call__(self, batch: StepBatch, step: PagedStep) -> tuple[mx.array, bool] | None:
        """Compute a decode step.

        Args:
            batch: `N` decode rows, all with logits and without taps.
            step: The pools, tables and states of the rows.

        Returns:
            Unevaluated logits `[N, V]`, and whether kernels make all writes to pages. None if
            the family cannot be traced; the step's pages and states are then unchanged.
        """
        if not self._works:
            return None
        rows = StepRows.of(batch, step.rows)
        groups = [pool.group for pool in step.pools]
        traces, counted = self.num_traces, dispatch.counts()
        try:
            logits, fences, written, states = self._run(
                rows.longest,
                batch.ids,
                batch.positions,
                [] if batch.rope_positions is None else [batch.rope_positions],
                rows.of_tokens,
                [table.array for table in step.tables],
                [(group.keys, group.values, group.fence) for group in groups],
                self._states(step),
            )
        except Exception as error:  # noqa: BLE001  a family's forward may raise anything
            self._works = False
            self._log.warning("engine.decode.untraced", error=str(error))
            return None
        for group, fence in zip(groups, fences, strict=True):
            group.fence = fence
        for group, (keys, values) in zip(groups, written, strict=False):
            group.keys[:], group.values[:] = keys, values
        for layer, state in zip(self._recurrent, states, strict=True):
            step.states[0].write(layer, [tuple(state)])
        key = (len(step.rows), rows.longest, batch.rotary.ndim)
        self._count(key, self.num_traces > traces, counted)
        return logits, not written

    def _states(self, step: PagedStep) -> list[State]:
        if not self._recurrent:
            return []
        (rows,) = step.states
        # dtype of zero states whose spec declares none; without attention there is no pool
        dtype = step.pools[0].dtype if step.pools else mx.float32
        return [rows.read(i, self._layout.state(i), dtype) for i in self._recurrent]

    def _trace(
        self,
        longest: int,
        ids: mx.array,
        positions: mx.array,
        rope_positions: Arrays,
        rows: mx.array,
        tables: Sequence[mx.array],
        pages: Sequence[tuple[Arrays, Arrays, mx.array]],
        states: Sequence[State],
    ) -> tuple[mx.array, Arrays, list[tuple[Arrays, Arrays]], list[State]]:
        """Run the family's forward on placeholders.

        Returns:
            Logits; the write fence of each group; keys and values of each group if an
            operation replaced the arrays, else nothing; the recurrent states by layer.
        """
        self.num_traces += 1
        n, unknown = ids.shape[0], _UnknownPosition()
        segments = tuple(Segment(i, 1, unknown) for i in range(n))  # type: ignore[arg-type]  a placeholder
        rotary = rope_positions[0] if rope_positions else None
        batch = StepBatch(
            ids, positions, segments, (Wave(n, 1),), mx.arange(n), rope_positions=rotary
        )
        groups = [GroupPages([*keys], [*values], fence) for keys, values, fence in pages]
        attention = KernelAttention(
            self._layout, groups, tables, batch, StepRows(rows, longest)
        )
        traced = _TracedStates(dict(zip(self._recurrent, states, strict=True)))
        scans = [traced] if self._recurrent else []
        context = PagedContext(self._layout, batch, attention, scans)
        logits = self._family.forward(self._model, batch, context).logits
        assert logits is not None  # decode rows want logits
        written = [] if attention.in_place else [(group.keys, group.values) for group in groups]
        after = [traced.after[layer] for layer in self._recurrent]
        return logits, [group.fence for group in groups], written, after

    def _count(self, key: tuple[int, ...], fresh: bool, before: dict[str, int]) -> None:
        """Count the kernels of a replay, which are the kernels of its trace."""
        if fresh:
            after = dispatch.counts()
            self._dispatched[key] = {
                name: after[name] - before.get(name, 0)
                for name in after
                if after[name] != before.get(name, 0)
            }
            return
        for name, times in self._dispatched.get(key, {}).items():
            operation, _, variant = name.partition(":")
            dispatch.record(operation, variant, times)
