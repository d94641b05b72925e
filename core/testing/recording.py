"""What a real engine asks of its scheduler and cache: its sizes, then every call in order."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs

from ..contract.cache_spec import (
    AttentionSpec,
    CacheLayout,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    StateTensor,
    layer_routes,
)
from ..contract.tap import Tap
from ..engine.core import Core
from ..errors import MemoryBudgetError
from ..kvcache.block_group import BlockGroup
from ..kvcache.coordinator import Coordinator
from ..kvcache.sequence import Sequence as CacheSequence
from ..kvcache.state_keeper import KeptState
from ..scheduler.cold_port import RestoreProgress
from ..scheduler.plan import PlannedRow, StepPlan
from ..scheduler.request import Request
from ..settings import SchedulerSettings
from .simulated_setup import SimulatorSetup

Event: TypeAlias = list[Any]
"""The name of a call, its arguments and its outcome, all of them plain values."""

REQUEST_FIELDS = frozenset(
    {"id", "tokens", "max_tokens", "salt", "extra_keys", "owner", "look_ahead"}
)
"""Fields of a request that its caller chose."""


@attrs.frozen
class GroupRecord:
    """One cache group.

    Attributes:
        window: Positions that its layers see; None for all.
        kv_heads: Key and value heads of a layer.
        head_dim: Width of a key, in elements.
        value_dim: Width of a value, in elements.
        num_layers: Layers of the group; 0 where all layers are recurrent.
        num_blocks: Blocks of its pool when the recording began, the null block included.
        max_num_blocks: Blocks after growth.
    """

    window: int | None
    kv_heads: int
    head_dim: int
    value_dim: int
    num_layers: int
    num_blocks: int
    max_num_blocks: int

    @property
    def spec(self) -> AttentionSpec:
        """What its layers keep."""
        if self.window is None:
            return FullAttention(self.kv_heads, self.head_dim, self.value_dim)
        return SlidingWindow(self.window, self.kv_heads, self.head_dim, self.value_dim)


@attrs.frozen
class Recording:
    """The calls of a run.

    Attributes:
        groups: The attention groups; one of no layers where all layers are recurrent.
        recurrent: Whether there are recurrent layers.
        grows: Whether pools may grow.
        cold: Whether there is a cold tier.
        taps: Layers of the taps that every plan asks for.
        setup: Other sizes, as keywords of `SimulatorSetup`.
        scheduler: Settings of the scheduler.
        events: The calls.
    """

    groups: tuple[GroupRecord, ...]
    recurrent: bool
    grows: bool
    cold: bool
    taps: tuple[int | None, ...]
    setup: dict[str, Any]
    scheduler: dict[str, Any]
    events: list[Event] = attrs.field(factory=list)

    @property
    def plans(self) -> list[StepPlan]:
        """The plans of the run."""
        return [StepPlan.from_json(event[-1]) for event in self.events if event[0] == "plan"]

    @property
    def layout(self) -> CacheLayout:
        """A layout with the same groups."""
        layers: list[Any] = [g.spec for g in self.groups for _ in range(g.num_layers)]
        state = RecurrentState([StateTensor("state", (1,))])
        return layer_routes(layers + [state] * self.recurrent)

    def simulator_setup(self) -> SimulatorSetup:
        """Return the size of a simulated engine that is like the recorded one."""
        return SimulatorSetup(
            layout=self.layout,
            num_blocks=[g.num_blocks for g in self.groups],
            max_num_blocks=[g.max_num_blocks for g in self.groups] if self.grows else None,
            taps=tuple(map(Tap, self.taps)),
            scheduler=SchedulerSettings(**self.scheduler),
            **self.setup,
        )

    def to_json(self) -> str:
        """Return the recording as JSON."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Recording:
        """Return the recording that `to_json` wrote."""
        fields = json.loads(text)
        groups = tuple(GroupRecord(**group) for group in fields.pop("groups"))
        fields["taps"] = tuple(fields["taps"])
        return cls(groups=groups, **fields)


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
