"""The plan of a step: plain values that can be printed, sent, recorded and replayed."""

from __future__ import annotations

import itertools
import json
from typing import Literal, TypeAlias

import attrs

from ..contract.tap import Tap
from ..contract.wave import Wave
from ..ids import BlockId, RequestId, SequenceId
from ..structuring import strict_converter, structure

SnapshotKind: TypeAlias = Literal["none", "newest", "shared"]
"""Whether the state at a row's end is kept: never, until `release` publishes it, or at once."""

TableChanges: TypeAlias = tuple[tuple[int, BlockId], ...]
"""`(index, block id)` of table entries that changed since the sequence's last step."""


@attrs.frozen
class PlannedRow:
    """One request's part of a step: `length` consecutive positions of its sequence.

    Attributes:
        request: The request.
        sequence: The request's sequence at planning time; a preemption replaces the sequence.
        position: Absolute position of the first token.
        on_device: Whether the first token was sampled by the previous step and not read yet.
        tokens: The other known tokens, in order.
        drafts: Proposals behind the known tokens.
        num_logits: Number of last positions that want logits: 0, or 1 for the last known
            token plus 1 per draft.
        num_hidden: Number of last positions that want hidden states at the plan's taps.
        snapshot: Whether the recurrent state at the row's end is kept.
        blocks: Changes of the sequence's block tables, one tuple per cache group.
    """

    request: RequestId
    sequence: SequenceId
    position: int
    on_device: bool = False
    tokens: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    num_logits: int = 0
    num_hidden: int = 0
    snapshot: SnapshotKind = "none"
    blocks: tuple[TableChanges, ...] = ()

    @property
    def length(self) -> int:
        """Tokens of the row."""
        return self.on_device + len(self.tokens) + len(self.drafts)

    @property
    def end(self) -> int:
        """Position behind the row's last token."""
        return self.position + self.length

    @property
    def samples(self) -> bool:
        """Whether the row yields tokens."""
        return self.num_logits > 0

    @property
    def in_wave(self) -> bool:
        """Whether the row is in a wave: one known token and its drafts."""
        return self.length == 1 + len(self.drafts)


@attrs.frozen
class Preempted:
    """A preempted request.

    Attributes:
        request: The request.
        spilled: Whether the request's blocks were written to disk before.
    """

    request: RequestId
    spilled: bool


@attrs.frozen
class StepPlan:
    """The rows of a step, wave by wave, then slices of prompts.

    Rows with a token on the device come first within a wave.

    Attributes:
        rows: The rows, in the order of the step's tokens.
        preempted: Requests that were preempted for this plan.
        starved: Requests without blocks although no other request is admitted.
        taps: Places in the model at which a drafter reads hidden states.
    """

    rows: tuple[PlannedRow, ...] = ()
    preempted: tuple[Preempted, ...] = ()
    starved: tuple[RequestId, ...] = ()
    taps: tuple[Tap, ...] = ()

    @property
    def waves(self) -> tuple[Wave, ...]:
        """The waves, by ascending length of their rows."""
        lengths = [row.length for row in self.rows if row.in_wave]
        return tuple(Wave(len(list(g)), n) for n, g in itertools.groupby(lengths))

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return sum(row.length for row in self.rows)

    @property
    def num_decode_rows(self) -> int:
        """Rows of one token."""
        return sum(row.length == 1 for row in self.rows)

    @property
    def has_slices(self) -> bool:
        """Whether a row is a slice of a prompt, in no wave."""
        return bool(self.rows) and not self.rows[-1].in_wave

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StepPlan:
        """Return the plan that `to_json` wrote.

        Raises:
            SettingsError: The text is not a plan.
        """
        return structure(json.loads(text), cls, _CONVERTER)


_CONVERTER = strict_converter(forbid_extra_keys=True)


def wave_order(row: PlannedRow) -> tuple[bool, int, bool]:
    """Return the key that sorts rows: waves by length, tokens on the device first, slices."""
    if not row.in_wave:
        return (True, 0, False)
    return (False, row.length, not row.on_device)
