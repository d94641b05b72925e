"""Writes down what a real engine asks of its scheduler and cache: sizes, then every call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from ..contract.cache_spec import CacheLayout
from ..engine.core import Core
from ..errors import MemoryBudgetError
from ..kvcache.block_group import BlockGroup
from ..kvcache.coordinator import Coordinator
from ..kvcache.sequence import Sequence as CacheSequence
from ..kvcache.state_keeper import KeptState
from ..scheduler.cold_port import RestoreProgress
from ..scheduler.plan import PlannedRow, StepPlan
from ..scheduler.request import Request
from .recording import Event, GroupRecord, Recording

REQUEST_FIELDS = frozenset(
    {"id", "tokens", "max_tokens", "salt", "extra_keys", "owner", "look_ahead"}
)
"""Fields of a request that its caller chose."""


class Recorder:
    """Writes down the calls of one engine from now on; its cache must be empty.

    Attributes:
        recording: What has happened so far.
    """

    def __init__(self, core: Core) -> None:
        """Listen to an engine.

        Args:
            core: What the engine owns; on its thread, between two steps, before any request.
        """
        self.recording = _sizes(core)
        self._depth = 0
        scheduler, cache = core.scheduler, core.runner.lane.cache
        for owner, name, event in (
            (scheduler, "submit", _submitted),
            (scheduler, "plan", _planned),
            (scheduler, "mark_in_flight", _marked),
            (scheduler, "settle", _settled),
            (scheduler, "finish", _finished),
            (scheduler, "propose", _proposed),
            (scheduler, "requeue_restoring", _requeued),
            (cache, "purge", _purged),
            (cache.snapshots, "reach", _reached),
        ):
            self._listen(owner, name, event)
        if core.cold is not None:
            for name, event in (
                ("propose", _cold_proposed),
                ("advance", _cold_advanced),
                ("spill", _cold_spilled),
            ):
                self._listen(core.cold, name, event, inner=True)
        for group in cache.groups:
            self._listen_to_growth(group)

    def _listen(
        self, owner: Any, name: str, event: Callable[..., Event], *, inner: bool = False
    ) -> None:
        """Write an event after each call of a method of one object.

        Args:
            owner: The object.
            name: The method.
            event: Gets the outcome and the arguments of a call.
            inner: Whether calls within other calls are written down too: their outcomes
                decide what the outer call does.
        """
        method = getattr(owner, name)

        @functools.wraps(method)
        def listened(*arguments: Any, **keywords: Any) -> Any:
            is_outer = not self._depth
            self._depth += 1
            try:
                outcome = method(*arguments, **keywords)
            finally:
                self._depth -= 1
            if is_outer or inner:
                self.recording.events.append(event(outcome, *arguments, **keywords))
            return outcome

        setattr(owner, name, listened)

    def _listen_to_growth(self, group: BlockGroup) -> None:
        grow = group._grow_pool
        if grow is None:
            return

        def listened(index: int, num_blocks: int) -> None:
            try:
                grow(index, num_blocks)
            except MemoryBudgetError:
                self.recording.events.append(["grow", False])
                raise
            self.recording.events.append(["grow", True])

        group._grow_pool = listened


def _submitted(_: None, request: Request) -> Event:
    fields = attrs.asdict(request, filter=lambda field, _: field.name in REQUEST_FIELDS)
    return ["submit", fields]


def _planned(plan: StepPlan) -> Event:
    return ["plan", plan.to_json()]


def _marked(_: None, plan: StepPlan) -> Event:
    return ["mark", plan.to_json()]


def _settled(_: object, row: PlannedRow, tokens: Sequence[int]) -> Event:
    return ["settle", StepPlan((row,)).to_json(), list(tokens)]


def _finished(_: None, request: Request) -> Event:
    return ["finish", request.id]


def _proposed(_: None, request: Request, drafts: Sequence[int]) -> Event:
    return ["propose", request.id, list(drafts)]


def _requeued(_: None) -> Event:
    return ["requeue"]


def _purged(_: None) -> Event:
    return ["purge"]


def _reached(_: None, sequence: CacheSequence, state: KeptState, *, shared: bool) -> Event:
    return ["reach", sequence.id, state.boundary, shared]


def _cold_proposed(num_tokens: int, *_: object) -> Event:
    return ["cold.propose", num_tokens]


def _cold_advanced(progress: RestoreProgress, *_: object, idle: bool) -> Event:
    return ["cold.advance", progress.num_tokens, progress.done]


def _cold_spilled(spilled: bool, *_: object) -> Event:
    return ["cold.spill", spilled]


def _sizes(core: Core) -> Recording:
    """Return an empty recording with the sizes of an engine."""
    cache, scheduler = core.runner.lane.cache, core.scheduler
    layout: CacheLayout = core.runner.lane.layout
    return Recording(
        groups=tuple(_group(layout, group) for group in cache.groups),
        recurrent=bool(layout.states),
        grows=any(group._grow_pool is not None for group in cache.groups),
        cold=core.cold is not None,
        taps=tuple(tap.layer for tap in scheduler._planner._taps),
        setup={
            "block_size": cache.block_size,
            "max_slice": cache.max_slice,
            "max_context": scheduler._max_context,
            "row_exact": scheduler._planner._row_exact,
            **_keeping(cache),
        },
        scheduler=attrs.asdict(scheduler._planner._settings),
    )


def _group(layout: CacheLayout, group: BlockGroup) -> GroupRecord:
    allocator, spec = group.allocator, group.spec
    sizes = (allocator.num_blocks, allocator.max_num_blocks)
    if spec is None:
        return GroupRecord(None, 1, 1, 1, 0, *sizes)  # counts tokens, without a pool
    num_layers = layout.num_group_layers(group.index)
    dims = (spec.kv_heads, spec.head_dim, spec.value_dim)
    return GroupRecord(spec.visible_tokens, *dims, num_layers, *sizes)


def _keeping(cache: Coordinator) -> dict[str, Any]:
    """Return which snapshots and windows a cache keeps."""
    kept, kinds = dict[str, Any](), cache.kinds
    if kinds.states is not None and kinds.states.keeper is not None:
        keeper = kinds.states.keeper
        kept["snapshots"] = keeper._max_bytes // keeper._state_bytes
        kept["want_ladder"], kept["root"] = keeper.want_ladder, keeper._root
    if kinds.windows is not None:
        anchors = kinds.windows.pins.rules.anchors
        kept["anchors"] = sorted(anchor // cache.block_size for anchor in anchors)
    return kept
