"""Builders for scheduler tests: a real coordinator, and a step that computes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from neve.contract.cache_spec import FullAttention, uniform_layout
from neve.ids import RequestId, SaltDomain
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.scheduler.plan import StepPlan
from neve.scheduler.request import Request
from neve.scheduler.scheduler import Scheduler
from neve.settings import SchedulerSettings

BLOCK_SIZE = 4


@attrs.define
class Bench:
    """A scheduler over a real cache, driven as the engine drives it: one step ahead.

    Attributes:
        scheduler: The scheduler.
        cache: Its coordinator.
        previous: The plan that is computed but not settled.
        finished: Requests in the order in which they ended.
        plans: Every plan so far.
    """

    scheduler: Scheduler
    cache: Coordinator
    previous: StepPlan | None = None
    finished: list[Request] = attrs.field(factory=list)
    plans: list[StepPlan] = attrs.field(factory=list)
    requests: dict[int, Request] = attrs.field(factory=dict)

    @property
    def num_live_blocks(self) -> int:
        return self.cache.stats().groups[0].num_live

    def submit(self, prompt: list[int], max_tokens: int = 4, salt: int = 0) -> Request:
        number = RequestId(len(self.requests))
        request = Request(number, list(prompt), max_tokens, SaltDomain(salt))
        self.requests[number] = request
        self.scheduler.submit(request)
        return request

    def step(self) -> StepPlan:
        """Plan one step, then settle the one before it, as the engine does."""
        plan = self.scheduler.plan()
        self.plans.append(plan)
        self.scheduler.mark_in_flight(plan)
        if self.previous is not None:
            self.settle(self.previous)
        self.previous = plan
        self.cache.check()
        return plan

    def settle(self, plan: StepPlan) -> None:
        for row in plan.rows:
            tokens = self.requests[row.request].tokens
            request = self.scheduler.settle(row, [token_after(tokens)] if row.samples else [])
            if request is not None and request.num_outputs >= request.max_tokens:
                self.scheduler.finish(request)
                self.finished.append(request)

    def run(self, max_steps: int = 10_000) -> None:
        """Step until everything has finished."""
        for _ in range(max_steps):
            if self.scheduler.is_idle and self.previous is None:
                return
            if not self.step().rows:
                self.previous = None
        raise AssertionError("the scheduler made no progress")


def token_after(tokens: list[int]) -> int:
    """A model that does nothing: the next token is a function of all before it."""
    return (sum(tokens) * 31 + len(tokens)) % 1000 + 1


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    def make(
        num_blocks: int = 64,
        *,
        max_context: int = 512,
        row_exact: bool = False,
        **settings: Any,
    ) -> Bench:
        allocator = BlockAllocator(num_blocks + 1, BLOCK_SIZE)
        cache = Coordinator(uniform_layout(FullAttention(1, 8), 1), [allocator])
        scheduler = Scheduler(
            SchedulerSettings(**settings),
            cache,
            max_context=max_context,
            block_size=BLOCK_SIZE,
            row_exact=row_exact,
        )
        return Bench(scheduler, cache)

    return make


@pytest.fixture
def expected_tokens() -> Callable[[list[int], int], list[int]]:
    def expected(prompt: list[int], max_tokens: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(max_tokens):
            tokens.append(token_after(tokens))
        return tokens

    return expected
