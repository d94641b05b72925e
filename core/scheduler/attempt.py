"""The state of one planning call, thrown away with it."""

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
        num_drafts: How many of them, the last ones, are drafts.
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

    A scheduler that stops half-way leaves no half-updated counter behind: whatever a plan
    needs while it is made stands here.

    Attributes:
        budget: Tokens that may still be planned.
        preempted: Victims of this step.
        starved: Requests that cannot go on although they are alone.
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
        """Forget a victim's span."""
        span = self._spans.pop(request.id, None)
        if span is not None:
            self.budget += span.length

    def result(
        self, row_of: Callable[[Span], PlannedRow], taps: tuple[Tap, ...] = ()
    ) -> StepPlan:
        """Return the plan, its rows in the order that the executor wants."""
        rows = sorted(map(row_of, self._spans.values()), key=wave_order)
        return StepPlan(tuple(rows), tuple(self.preempted), tuple(self.starved), taps)
