"""The temporary state of one planning call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from ..contract.tap import Tap
from ..ids import RequestId
from .plan import PlannedRow, Preempted, StepPlan, wave_order
from .request import Request


@attrs.frozen(eq=False)
class Span:
    """Tokens of a request that a step is about to compute.

    Attributes:
        request: The request; its sequence has reserved the positions.
        length: Tokens.
        num_drafts: Number of drafts; drafts are the last tokens.
    """

    request: Request
    length: int
    num_drafts: int = 0

    @property
    def is_slice(self) -> bool:
        """Whether the span is a slice of a prompt: more than a known token and its drafts."""
        return self.length > 1 + self.num_drafts


class Attempt:
    """Collects a step's spans under its token budget.

    The temporary state of a plan is here and not in the scheduler, so a plan that fails
    leaves no half-updated scheduler state.

    Attributes:
        budget: Tokens that may still be planned.
        preempted: Requests that this step preempts.
        starved: Requests without blocks although no other request is admitted.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.preempted: list[Preempted] = []
        self.starved: list[RequestId] = []
        self._spans: dict[RequestId, Span] = {}

    def __contains__(self, request: Request) -> bool:
        return request.id in self._spans

    @property
    def num_slices(self) -> int:
        """Slices of prompts planned so far."""
        return sum(span.is_slice for span in self._spans.values())

    def add(self, span: Span) -> None:
        """Plan a span, in place of an earlier one of its request, and charge the budget."""
        self.drop(span.request)
        self._spans[span.request.id] = span
        self.budget -= span.length

    @property
    def spans(self) -> Sequence[Span]:
        """The spans so far, in the order in which they were planned."""
        return list(self._spans.values())

    def drop(self, request: Request) -> None:
        """Remove the span of a preempted request and return its tokens to the budget."""
        span = self._spans.pop(request.id, None)
        if span is not None:
            self.budget += span.length

    def result(
        self, row_of: Callable[[Span], PlannedRow], taps: tuple[Tap, ...] = ()
    ) -> StepPlan:
        """Return the plan, with its rows in `wave_order`."""
        rows = sorted(map(row_of, self._spans.values()), key=wave_order)
        return StepPlan(tuple(rows), tuple(self.preempted), tuple(self.starved), taps)
