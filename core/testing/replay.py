"""Replays a recording on a fresh scheduler and cache, over a device without arrays."""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from typing import Any

from ..contract.cache_spec import CacheLayout
from ..contract.prompt import Prompt
from ..errors import MemoryBudgetError
from ..ids import RequestId, SequenceId
from ..kvcache.coordinator import Coordinator
from ..kvcache.state_keeper import KeptState
from ..scheduler.cold_port import RestoreProgress
from ..scheduler.plan import StepPlan
from ..scheduler.request import Request
from .recording import Event, Recording
from .simulated_checks import check_contents, check_plan
from .simulated_device import Device, SimulatedRequest
from .simulated_model import SimulatedModel
from .simulator import Simulator

OUTCOMES = frozenset({"grow", "cold.propose", "cold.advance", "cold.spill"})
"""Calls within other calls: the outer call asks for what they returned."""


class Outcomes:
    """What calls within other calls have returned, in order."""

    def __init__(self) -> None:
        self._recorded: defaultdict[str, deque[list[Any]]] = defaultdict(deque)

    def add(self, event: Event) -> None:
        """Expect a call."""
        self._recorded[event[0]].append(event[1:])

    def take(self, name: str) -> list[Any]:
        """Return the outcome of the next call of a name.

        Raises:
            AssertionError: The recorded run made no such call here.
        """
        assert self._recorded[name], f"the recorded run made no call of {name} here"
        return self._recorded[name].popleft()

    @property
    def are_taken(self) -> bool:
        """Whether every call was made again."""
        return not any(self._recorded.values())


class RecordedCold:
    """A cold tier that does again what a recorded one has done."""

    def __init__(
        self,
        outcomes: Outcomes,
        model: SimulatedModel,
        layout: CacheLayout,
        cache: Coordinator,
        device: Device,
    ) -> None:
        self._outcomes = outcomes
        self._model = model
        self._cache = cache
        self._device = device
        self._primary = layout.primary

    def propose(self, request: Request, hit_length: int) -> int:
        """Return what was proposed."""
        return self._outcomes.take("cold.propose")[0]

    def begin(self, request: Request) -> None:
        """Do nothing: what arrives is recorded."""

    def cancel(self, request: Request) -> None:
        """Do nothing."""

    def spill(self, request: Request) -> bool:
        """Return whether the blocks of a victim were written."""
        return self._outcomes.take("cold.spill")[0]

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Write what arrived into the request's blocks."""
        num_tokens, done = self._outcomes.take("cold.advance")
        size, first = self._cache.block_size, request.sequence.frontier
        end = first + num_tokens
        text = Prompt(tuple(request.tokens))
        contents = self._model.contents(text, request.salt, request.tokens[:end])
        if self._cache.groups[self._primary].spec is not None:
            ids = request.sequence.tables[self._primary].ids
            for start in range(first, end, size):
                block = ids[start // size]
                self._device.write_block(self._primary, block, contents[start : start + size])
        state = self._install(request, end, contents) if num_tokens else None
        return RestoreProgress(num_tokens, done, state)

    def _install(self, request: Request, end: int, contents: list[int]) -> KeptState | None:
        kinds, size = self._cache.kinds, self._cache.block_size
        kept = KeptState(end, contents[end - 1])
        if kinds.windows is not None:
            for group, ids in kinds.windows.install(request.sequence, end).items():
                for block, start in zip(
                    reversed(ids), range(end - size, -1, -size), strict=False
                ):
                    self._device.write_block(group, block, contents[start : start + size])
        if kinds.states is not None:
            kinds.states.confirm(request.sequence, kept)
        return kept if kinds.windows or kinds.states else None


def no_cold(cache: Coordinator, device: Device) -> None:
    """Make no cold tier."""


class Replay:
    """Makes the calls of a recording again.

    Attributes:
        simulator: Scheduler, cache and device.
        plans: The plans that came out so far.
    """

    def __init__(self, recording: Recording) -> None:
        self.plans: list[StepPlan] = []
        self._recording = recording
        self._outcomes = Outcomes()
        setup, model = recording.simulator_setup(), SimulatedModel()
        cold = partial(RecordedCold, self._outcomes, model, setup.layout)
        self.simulator = Simulator(setup, model, cold if recording.cold else no_cold)
        self.simulator.grow = self._grow
        self._tokens = {e[1]: e[2] for e in recording.events if e[0] == "settle"}
        self._states: dict[tuple[SequenceId, int], KeptState] = {}

    def _grow(self, group: int, num_blocks: int) -> None:
        if not self._outcomes.take("grow")[0]:
            raise MemoryBudgetError("memory refused it in the recorded run")

    def run(self) -> list[StepPlan]:
        """Make every call, verify the contents before each plan, and return the plans.

        Raises:
            AssertionError: A row reads another text, or a call within a call was not made.
        """
        for event in self._recording.events:
            if event[0] in OUTCOMES:
                self._outcomes.add(event)
            else:
                getattr(self, f"_{event[0]}")(*event[1:])
                assert self._outcomes.are_taken, f"calls within {event[0]} were not made"
        return self.plans

    def _request(self, number: int) -> Request:
        return self.simulator.requests[RequestId(number)].request

    def _submit(self, fields: dict[str, Any]) -> None:
        keys = tuple(tuple(words) for words in fields["extra_keys"])
        chosen: dict[str, Any] = {"extra_keys": keys, "tokens": list(fields["tokens"])}
        request = Request(**(fields | chosen))
        self.simulator.scheduler.submit(request)
        known = SimulatedRequest(request, Prompt(tuple(fields["tokens"])))
        self.simulator.requests[request.id] = known

    def _plan(self, recorded: str) -> None:
        self.simulator.cache.check()
        check_contents(self.simulator)
        plan = self.simulator.scheduler.plan()
        check_plan(plan, self.simulator.scheduler)
        self.plans.append(plan)

    def _mark(self, recorded: str) -> None:
        plan = self.plans[-1]
        scripted = {
            row.request: self._tokens.get(StepPlan((row,)).to_json()) or [0]
            for row in plan.rows
        }
        self.simulator.device.run(plan, self.simulator.requests, scripted)
        sequences = {row.request: row.sequence for row in plan.rows}
        for number, state in self.simulator.snapshots(plan).items():
            self._states[sequences[number], state.boundary] = state
        self.simulator.scheduler.mark_in_flight(plan)

    def _settle(self, row: str, tokens: list[int]) -> None:
        (planned,) = StepPlan.from_json(row).rows
        self.simulator.scheduler.settle(planned, tokens)

    def _reach(self, sequence: int, boundary: int, shared: bool) -> None:
        live = (request.sequence for request in self.simulator.scheduler.requests)
        (reached,) = (s for s in live if s is not None and s.id == sequence)
        state = self._states[SequenceId(sequence), boundary]
        self.simulator.cache.snapshots.reach(reached, state, shared=shared)

    def _finish(self, number: int) -> None:
        self.simulator.scheduler.finish(self._request(number))

    def _propose(self, number: int, drafts: list[int]) -> None:
        self.simulator.scheduler.propose(self._request(number), drafts)

    def _requeue(self) -> None:
        self.simulator.scheduler.requeue_restoring()

    def _purge(self) -> None:
        self.simulator.cache.purge()
