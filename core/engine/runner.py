"""The runner: builds the lazy graph of a plan, and reads the tokens of a computed step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn as nn

from ..catalogue import Family
from ..contract.cache_spec import CacheLayout
from ..contract.forward import StepBatch, Tap
from ..contract.wave import Wave
from ..forward.flat_context import FlatContext
from ..forward.paged_context import PagedContext
from ..forward.paged_step import PagedStep
from ..forward.step_batch import RowInput, build_step_batch
from ..ids import RequestId
from ..metal.runtime import launch
from ..pools.flat_cache import FlatCache
from ..sampling.sampler import Draw, RowState, SampledRows, draw
from ..scheduler.plan import PlannedRow, StepPlan
from .completion import TokenLogprob
from .decode_graph import DecodeGraph
from .lanes import Lane, LaneStep, RowSnapshot


@attrs.define(eq=False)
class Step:
    """The lazy graph of a step.

    Attributes:
        plan: The plan of the step.
        sampled: Device arrays of the sampling rows, in plan order; None without such rows.
        sources: Request -> index of the request's first draw.
        updated: Cache arrays that must be evaluated with the step.
        snapshots: States of rows that end at boundaries.
        fences: The write fence of each group after the step. If the step writes in place,
            the step is complete when its fences are evaluated.
        in_place: Whether kernels make all writes to pages. Array dependencies then order
            the step after the previous one, so it can be started while that step runs.
        hidden: Hidden states `[H, D]` at the plan's taps, row by row.
        started_at: Start time of the step on the clock of `time.perf_counter`.
    """

    plan: StepPlan
    sampled: SampledRows | None
    sources: dict[RequestId, int]
    updated: list[mx.array]
    snapshots: list[RowSnapshot]
    fences: list[mx.array]
    in_place: bool
    hidden: Mapping[Tap, mx.array] = attrs.field(factory=dict)
    started_at: float = 0.0

    @property
    def decodes(self) -> bool:
        """Whether all rows of the step are in waves."""
        return not self.plan.has_slices

    def start(self) -> None:
        """Hand the graph to the device."""
        outputs = attrs.astuple(self.sampled, recurse=False) if self.sampled else ()
        wanted = [a for a in outputs if a is not None]
        mx.async_eval(*wanted, *self.updated, *self.hidden.values())
        # a second reference to a pool's array would turn its next update into a copy
        self.updated.clear()
        self.started_at = time.perf_counter()

    def read(
        self, *, others_run: bool = False
    ) -> tuple[list[int | None], list[TokenLogprob | None]]:
        """Wait for the step and return the token and log-probability of each draw.

        A token is None if one of its logits is NaN or infinite.

        Args:
            others_run: Whether the next step was started already. If not, `read` waits for
                all work of the device: an operation of the next step cannot update a pool in
                place while a pending write still reads the pool.
        """
        if others_run:
            mx.eval(*self.fences)
        else:
            mx.synchronize()
        if self.sampled is None:
            return [], []
        tokens: Any = self.sampled.tokens.tolist()
        finite: Any = self.sampled.finite.tolist()
        sound = [t if ok else None for t, ok in zip(tokens, finite, strict=True)]
        return sound, _read_logprobs(self.sampled, tokens)


def _read_logprobs(sampled: SampledRows, tokens: list[int]) -> list[TokenLogprob | None]:
    if sampled.logprobs is None:
        return [None] * len(tokens)
    assert sampled.top_ids is not None
    assert sampled.top_logprobs is not None
    own: Any = sampled.logprobs.tolist()
    ids: Any = sampled.top_ids.tolist()
    values: Any = sampled.top_logprobs.tolist()
    return [
        TokenLogprob(token, logprob, tuple(zip(*top, strict=True)))
        for token, logprob, *top in zip(tokens, own, ids, values, strict=True)
    ]


@attrs.frozen(eq=False)
class _Computed:
    """The lazy results of a forward.

    Attributes:
        logits: `[R, V]`; None if no row samples.
        in_place: Whether kernels make all writes to pages.
        hidden: Tap -> hidden states `[H, D]`.
    """

    logits: mx.array | None
    in_place: bool
    hidden: Mapping[Tap, mx.array] = attrs.field(factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[_Computed], taps: Sequence[Tap]) -> _Computed:
        """Return the joined results of successive forwards, row by row."""
        logits = [part.logits for part in parts if part.logits is not None]
        hidden = {tap: mx.concatenate([part.hidden[tap] for part in parts]) for tap in taps}
        return cls(mx.concatenate(logits) if logits else None, False, hidden)


class Runner:
    """Runs a family's forward over a lane. Owned by the engine thread."""

    def __init__(
        self,
        family: Family,
        model: nn.Module,
        layout: CacheLayout,
        lane: Lane,
        *,
        row_exact: bool,
    ) -> None:
        """Bind a model to a lane.

        Args:
            family: The model's family.
            model: The model.
            layout: The model's cache layout.
            lane: The cache and its forward context.
            row_exact: Whether each row is computed alone, so that its logits do not depend on
                other rows.
        """
        self.lane = lane
        self._layout = layout
        self._family = family
        self._model = model
        self._row_exact = row_exact
        self._graph = DecodeGraph(family, model, layout)

    def build(
        self, plan: StepPlan, previous: Step | None, states: Mapping[RequestId, RowState]
    ) -> Step:
        """Build the lazy graph of a step. Row-exact rows are evaluated at once.

        Sampling states of rows without drafts advance by one token, which may still be on the
        device. Sampling states of rows with drafts advance after the step is read.

        Args:
            plan: The plan of the step.
            previous: The previous step, which sampled the tokens of `on_device` rows.
            states: Request -> sampling state, for each request of the plan.
        """
        inputs = [_row_input(row, previous) for row in plan.rows]
        sampled = previous.sampled.tokens if previous and previous.sampled else None
        computed = self._compute(plan, inputs, sampled)
        logits = computed.logits
        snapshots = self.lane.snapshots(plan)
        kept = [array for s in snapshots for array in s.state.handle.arrays()]
        return Step(
            plan,
            None if logits is None else _draw(logits, plan, states),
            _sources(plan),
            self.lane.arrays(plan.rows) + kept,
            snapshots,
            self.lane.fences,
            computed.in_place,
            computed.hidden,
        )

    def _compute(
        self, plan: StepPlan, inputs: Sequence[RowInput], sampled: mx.array | None
    ) -> _Computed:
        if not self._row_exact:
            batch = build_step_batch(inputs, sampled, plan.waves, plan.taps)
            return self._forward(batch, plan.rows)
        # one graph of several rows would read and then write a pool, which copies the pool
        mx.synchronize()
        parts: list[_Computed] = []
        for one, row in zip(inputs, plan.rows, strict=True):
            waves = (Wave(1, row.length),) if row.in_wave else ()
            batch = build_step_batch([one], sampled, waves, plan.taps)
            part = self._forward(batch, [row])
            mx.eval(part.logits, *part.hidden.values(), *self.lane.arrays([row]))
            parts.append(part)
        return _Computed.joined(parts, plan.taps)

    def _forward(self, batch: StepBatch, rows: Sequence[PlannedRow]) -> _Computed:
        step = self.lane.prepare(batch, rows)
        replayed = self._replayed(batch, step)
        if replayed is not None:
            return _Computed(*replayed)
        context = step.context(batch)
        output = self._family.forward(self._model, batch, context)
        in_place = isinstance(context, PagedContext) and context.in_place
        return _Computed(output.logits, in_place, output.hidden)

    def _replayed(self, batch: StepBatch, step: LaneStep) -> tuple[mx.array, bool] | None:
        """Return the result of a traced decode step; None if the step cannot be traced."""
        if not isinstance(step, PagedStep) or not launch.builds_graphs():
            return None
        n = batch.num_decode_rows
        decodes = n == len(batch.segments) == batch.logit_rows.shape[0]
        traceable = decodes and not batch.taps
        return self._graph(batch, step) if traceable else None

    def evaluate(self, ids: Sequence[int]) -> mx.array:
        """Return the evaluated float32 logits `[T, V]` of one sequence, without the cache."""
        batch = attrs.evolve(
            build_step_batch([RowInput(0, ids)], None, ()), logit_rows=mx.arange(len(ids))
        )
        context = FlatContext(self._layout, [FlatCache()], batch)
        output = self._family.forward(self._model, batch, context)
        assert output.logits is not None
        logits = output.logits.astype(mx.float32)
        mx.eval(logits)
        return logits


def _draw(
    logits: mx.array, plan: StepPlan, states: Mapping[RequestId, RowState]
) -> SampledRows:
    """Draw the tokens of a step and accept the tokens of rows without drafts."""
    rows = [row for row in plan.rows if row.samples]
    draws = [
        Draw(states[row.request], row.drafts[:k]) for row in rows for k in range(row.num_logits)
    ]
    sampled, index = draw(logits, draws), 0
    for row in rows:
        if not row.drafts:
            states[row.request].accept(sampled.tokens, index)
        index += row.num_logits
    return sampled


def _sources(plan: StepPlan) -> dict[RequestId, int]:
    """Return the index of each request's first draw among all draws of the step."""
    sources: dict[RequestId, int] = {}
    index = 0
    for row in plan.rows:
        if row.samples:
            sources[row.request] = index
            index += row.num_logits
    return sources


def _row_input(row: PlannedRow, previous: Step | None) -> RowInput:
    source = None
    if row.on_device:
        assert previous is not None
        source = previous.sources[row.request]
    ids = (*row.tokens, *row.drafts)
    return RowInput(row.position, ids, source, row.num_logits, row.num_hidden)
