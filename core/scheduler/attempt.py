"""The state of one planning call, thrown away with it."""

from __future__ import annotations

from .plan import PlannedRow, StepPlan
from .request import Request


class Attempt:
    """Collects a step's rows under its token budget.

    A scheduler that stops half-way leaves no half-updated counter behind: all that a plan
    needs while it is made stands here.

    Attributes:
        budget: Tokens that may still be planned.
        preempted: Victims of this step.
        starved: Requests that cannot go on although they are alone.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.preempted: list[Request] = []
        self.starved: list[Request] = []
        self._rows: dict[int, PlannedRow] = {}

    def __contains__(self, request: Request) -> bool:
        return request.id in self._rows

    @property
    def num_prefill_rows(self) -> int:
        """Prefill slices planned so far."""
        return sum(row.length > 1 for row in self._rows.values())

    def add(self, row: PlannedRow) -> None:
        """Plan a row and charge the budget."""
        self._rows[row.request.id] = row
        self.budget -= row.length

    def drop(self, request: Request) -> None:
        """Forget a victim's row."""
        row = self._rows.pop(request.id, None)
        if row is not None:
            self.budget += row.length

    def result(self) -> StepPlan:
        """Return the plan, its rows in the order that the executor wants."""
        rows = sorted(self._rows.values(), key=lambda row: (row.length > 1, not row.on_device))
        return StepPlan(tuple(rows), tuple(self.preempted), tuple(self.starved))
