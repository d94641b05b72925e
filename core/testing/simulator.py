"""Scheduler and cache over a device without arrays, driven step by step.

Everything that decides is the product's own: scheduler, coordinator and managers. Model,
device and disk are invented: see `simulated_model`, `simulated_device`, `simulated_disk`.
After every step the simulator verifies each equation that must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs

from ..contract.prompt import Prompt
from ..errors import MemoryBudgetError
from ..ids import SHARED_DOMAIN, RequestId, SaltDomain
from ..kvcache.block_group import GrowPool
from ..kvcache.coordinator import Coordinator
from ..kvcache.state_keeper import KeptState
from ..sampling.acceptance import accepted
from ..scheduler.cold_port import ColdPort
from ..scheduler.plan import PlannedRow, StepPlan
from ..scheduler.request import Request, RequestStatus
from ..scheduler.scheduler import Scheduler
from .simulated_checks import check_contents, check_plan
from .simulated_device import Device, SimulatedRequest
from .simulated_disk import SimulatedDisk
from .simulated_model import SimulatedModel
from .simulated_setup import SimulatorSetup


@attrs.frozen(eq=False)
class ComputedStep:
    """A step that the device has computed and the host has not read.

    Attributes:
        plan: The plan.
        drawn: Tokens by request, one for each position with logits.
        snapshots: States by request, of the rows that reach a boundary.
    """

    plan: StepPlan
    drawn: dict[RequestId, list[int]]
    snapshots: dict[RequestId, KeptState]


MakeCold: TypeAlias = Callable[[Coordinator, Device], ColdPort | None]
"""Makes the cold tier of a simulator, if there is one."""


class Simulator:
    """A simulated engine: one step ahead of what the host has read.

    Attributes:
        setup: Its size.
        cache: The product's coordinator.
        device: What computes.
        disk: The cold tier.
        scheduler: The product's scheduler.
        requests: Every request so far.
        plans: Every plan so far.
        memory_is_tight: Whether pools may not grow.
        grow: Asked before a pool grows; raises `MemoryBudgetError` to refuse.
    """

    def __init__(
        self,
        setup: SimulatorSetup,
        model: SimulatedModel | None = None,
        make_cold: MakeCold | None = None,
    ) -> None:
        """Begin without requests.

        Args:
            setup: The size.
            model: What computes tokens.
            make_cold: Makes another cold tier than the invented disk.
        """
        self.setup = setup
        self.model = model or SimulatedModel()
        self.memory_is_tight = False
        self.grow: GrowPool = self._grow_if_roomy
        self.cache = setup.make_cache(self._ask_to_grow)
        self.device = Device(setup.layout, setup.block_size, self.model)
        self.cache.bind_states(self.device.states)
        self.disk = SimulatedDisk(setup.layout, self.cache, self.device)
        cold = self.disk if make_cold is None else make_cold(self.cache, self.device)
        self.scheduler = self._make_scheduler(cold)
        self.requests: dict[RequestId, SimulatedRequest] = {}
        self.plans: list[StepPlan] = []
        self._in_flight: ComputedStep | None = None

    def _make_scheduler(self, cold: ColdPort | None) -> Scheduler:
        return Scheduler(
            self.setup.scheduler,
            self.cache,
            max_context=self.setup.max_context,
            block_size=self.setup.block_size,
            row_exact=self.setup.row_exact,
            cold=cold,
            taps=self.setup.taps,
        )

    def _ask_to_grow(self, group: int, num_blocks: int) -> None:
        self.grow(group, num_blocks)

    def _grow_if_roomy(self, group: int, num_blocks: int) -> None:
        if self.memory_is_tight:
            raise MemoryBudgetError("the simulated memory is full")

    # -- requests --------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        max_tokens: int,
        *,
        salt: SaltDomain = SHARED_DOMAIN,
        owner: str = "",
        look_ahead: bool = True,
    ) -> SimulatedRequest:
        """Queue a prompt.

        Raises:
            ContextLengthExceededError: It does not fit.
        """
        request = Request(
            RequestId(len(self.requests)),
            list(prompt.tokens),
            max_tokens,
            salt,
            prompt.extra_keys(self.setup.block_size),
            owner,
            look_ahead,
        )
        self.scheduler.submit(request)
        known = self.requests[request.id] = SimulatedRequest(request, prompt)
        return known

    def propose(self, known: SimulatedRequest, drafts: Sequence[int]) -> None:
        """Offer drafts for a request's next step."""
        self.scheduler.propose(known.request, drafts)

    def cancel(self, known: SimulatedRequest) -> None:
        """End a request that its caller has given up."""
        known.is_cancelled = True
        self._finish(known)

    def _finish(self, known: SimulatedRequest) -> None:
        self.disk.capture(known.request)
        self.scheduler.finish(known.request)

    # -- steps -----------------------------------------------------------------------------

    @property
    def in_flight(self) -> ComputedStep | None:
        """The step that was computed and not read."""
        return self._in_flight

    def step(self) -> StepPlan:
        """Plan and compute a step, then read and settle the one before it."""
        previous, self._in_flight = self._in_flight, None
        plan = self.scheduler.plan()
        check_plan(plan, self.scheduler)
        self.plans.append(plan)
        for starved in plan.starved:
            self.cancel(self.requests[starved])
        if plan.rows:
            drawn = self.device.run(plan, self.requests)
            self._in_flight = ComputedStep(plan, drawn, self.snapshots(plan))
            self.scheduler.mark_in_flight(plan)
        if previous is not None:
            self._settle(previous)
        self.check()
        return plan

    def snapshots(self, plan: StepPlan) -> dict[RequestId, KeptState]:
        """Return the states at boundaries that a step has reached."""
        found: dict[RequestId, KeptState] = {}
        for row in plan.rows:
            if row.snapshot != "none":
                newest = self.device.states.newest(row.sequence)
                assert newest is not None, "the row's state was computed"
                found[row.request] = KeptState(*newest)
        return found

    def _settle(self, step: ComputedStep) -> None:
        for row in step.plan.rows:
            tokens = accepted(row.drafts, step.drawn.get(row.request, []))
            request = self.scheduler.settle(row, tokens)
            if request is not None:
                self._keep(request, row, step.snapshots.get(request.id))
                self._deliver(self.requests[request.id])

    def _keep(self, request: Request, row: PlannedRow, state: KeptState | None) -> None:
        sequence = request.sequence
        if state is not None and sequence is not None and sequence.id == row.sequence:
            self.cache.snapshots.reach(sequence, state, shared=row.snapshot == "shared")

    def _deliver(self, known: SimulatedRequest) -> None:
        """End a request whose answer is whole."""
        request, end = known.request, self.model.end_token
        answer = request.tokens[request.num_prompt_tokens :]
        if end in answer:
            answer = answer[: answer.index(end) + 1]
        elif len(answer) < request.max_tokens:
            return
        known.answer = answer
        self._finish(known)

    def run(self, max_steps: int = 10_000) -> None:
        """Step until every request has ended; whatever waits for the disk gets its all."""
        self.disk.eager = True
        for known in self.requests.values():
            if known.request.id in self.disk.restoring:
                self.disk.arrive(known.request)
        for _ in range(max_steps):
            if self.scheduler.is_idle and self._in_flight is None:
                return
            self.step()
        raise AssertionError("the scheduler makes no progress")

    def fail_step(self) -> None:
        """Lose the device: whatever runs fails, restores begin again, and memory is empty."""
        self._in_flight = None
        for known in self.requests.values():
            request = known.request
            running = request.status is RequestStatus.RUNNING or request.awaits_tokens
            if running and request.status is not RequestStatus.FINISHED:
                known.is_cancelled = True
                self.scheduler.finish(request)
        self.scheduler.requeue_restoring()
        self.cache.purge()
        self.device.clear()
        self.check()

    def forget(self) -> None:
        """Drop every prefix that no request holds."""
        self.cache.purge()

    def check(self) -> None:
        """Verify what must hold between two steps.

        Raises:
            AssertionError: An equation is broken.
        """
        self.cache.check()
        check_contents(self)
        waiting = {
            request.id
            for request in self.scheduler.requests
            if request.status is RequestStatus.WAITING_FOR_SSD
        }
        assert self.disk.restoring == waiting, "requests wait for restores that go on"
        assert not self.disk.proposed, "a proposal is taken up or given up at once"
