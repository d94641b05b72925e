"""What a run of an engine has asked of scheduler and cache, as plain data.

`recorder` writes a recording, and `replay` makes its calls again.
"""

from __future__ import annotations

import json
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
from ..scheduler.plan import StepPlan
from ..settings import SchedulerSettings
from .simulated_setup import SimulatorSetup

Event: TypeAlias = list[Any]
"""The name of a call, its arguments and its outcome, all of them plain values."""


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
