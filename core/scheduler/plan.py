"""What one step computes."""

from __future__ import annotations

from typing import Any

import attrs

from .turn import Turn


@attrs.frozen(eq=False)
class PlannedRow:
    """One turn's part of a step.

    Attributes:
        turn: The turn.
        sequence: Its sequence when the step was planned; a preemption replaces it.
        position: Absolute position of the first token.
        length: Tokens; 1 for a decode row.
        samples: Whether a token is sampled from the last position.
        on_device: The row's token was sampled by the previous step and is not read yet.
    """

    turn: Turn
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
        preempted: Turns whose blocks were taken to make this plan possible.
        starved: Turns that no block could be found for although nothing else runs.
    """

    rows: tuple[PlannedRow, ...] = ()
    preempted: tuple[Turn, ...] = ()
    starved: tuple[Turn, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return sum(row.length for row in self.rows)

    @property
    def num_decode_rows(self) -> int:
        """Rows of one token."""
        return sum(row.length == 1 for row in self.rows)
