"""What one step computes."""

from __future__ import annotations

from typing import Any

import attrs

from .request import Request


@attrs.frozen(eq=False)
class PlannedRow:
    """One request's part of a step.

    Attributes:
        request: The request.
        sequence: Its sequence when the step was planned; a preemption replaces it.
        position: Absolute position of the first token.
        length: Tokens; 1 for a decode row.
        samples: Whether a token is sampled from the last position.
        on_device: The row's token was sampled by the previous step and is not read yet.
    """

    request: Request
    sequence: Any
    position: int
    length: int
    samples: bool
    on_device: bool


@attrs.frozen
class StepPlan:
    """Rows of a step: decode rows with a token on the device, other decode rows, slices.

    Attributes:
        rows: The rows, in the order in which they are computed.
        preempted: Requests whose blocks were taken to make this plan possible.
        starved: Requests that no block could be found for although nothing else runs.
    """

    rows: tuple[PlannedRow, ...] = ()
    preempted: tuple[Request, ...] = ()
    starved: tuple[Request, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return sum(row.length for row in self.rows)

    @property
    def num_decode_rows(self) -> int:
        """Rows of one token."""
        return sum(row.length == 1 for row in self.rows)
