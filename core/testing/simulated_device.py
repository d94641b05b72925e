"""A device without arrays: computes plans in the order in which they are made.

A slot of a block holds a content, see `simulated_model`. Tables are fed by the plans alone, as
those of the real device are. Every read is compared with the content that belongs there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from ..contract.cache_spec import CacheLayout
from ..contract.prompt import Prompt
from ..errors import CacheMisuseError
from ..ids import NULL_BLOCK, BlockId, RequestId, SequenceId
from ..scheduler.plan import PlannedRow, StepPlan
from ..scheduler.request import Request
from .simulated_model import SimulatedModel, media_words


@attrs.define(eq=False)
class SimulatedRequest:
    """A request, and the prompt that its caller has given.

    Attributes:
        request: The scheduler's side.
        prompt: Tokens and pictures.
        answer: Tokens that the caller has got; None while the request runs.
        is_cancelled: The caller has given it up, or a step has failed.
    """

    request: Request
    prompt: Prompt
    answer: list[int] | None = None
    is_cancelled: bool = False


class SimulatedStates:
    """The recurrent states of live sequences; a `kvcache.state_manager.LiveStates`.

    A state is the content of the position before it. A row of a wave keeps the state after
    each of its tokens, a slice the last one.
    """

    def __init__(self) -> None:
        self._kept: dict[SequenceId, dict[int, int]] = {}

    def install(self, sequence: SequenceId, position: int, state: int) -> None:
        """Let a sequence continue at `position`."""
        self._kept[sequence] = {position: state}

    def rewind(self, sequence: SequenceId, position: int) -> None:
        """Take a state back to a position of the last step."""
        kept = self._kept.get(sequence)
        if kept is None or max(kept) <= position:
            return
        if position not in kept:
            raise CacheMisuseError(
                f"rewind sequence {sequence} to position {position}",
                f"states of positions {sorted(kept)} are kept",
            )
        self._kept[sequence] = {position: kept[position]}

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence."""
        self._kept.pop(sequence, None)

    def clear(self) -> None:
        """Forget all sequences."""
        self._kept.clear()

    @property
    def sequences(self) -> set[SequenceId]:
        """Sequences that have a state."""
        return set(self._kept)

    def newest(self, sequence: SequenceId) -> tuple[int, int] | None:
        """Return position and state behind the newest step; None without a state."""
        kept = self._kept.get(sequence)
        return None if kept is None else max(kept.items())

    def advance(self, sequence: SequenceId, kept: Mapping[int, int]) -> None:
        """Replace a sequence's states by those of a step, by position."""
        self._kept[sequence] = dict(kept)


class Device:
    """Slots, tables and states.

    Attributes:
        states: The recurrent states.
        slots: `(group, block, offset)` -> content.
    """

    def __init__(self, layout: CacheLayout, block_size: int, model: SimulatedModel) -> None:
        self.states = SimulatedStates()
        self.slots: dict[tuple[int, BlockId, int], int] = {}
        self._layout = layout
        self._block_size = block_size
        self._model = model
        self._tables: dict[SequenceId, list[dict[int, BlockId]]] = {}
        self._drawn: dict[RequestId, list[int]] = {}

    def run(
        self,
        plan: StepPlan,
        requests: Mapping[RequestId, SimulatedRequest],
        scripted: Mapping[RequestId, Sequence[int]] | None = None,
    ) -> dict[RequestId, list[int]]:
        """Compute a plan.

        Args:
            plan: The plan.
            requests: Every request of the plan, as it was when the plan was made.
            scripted: Tokens to draw instead of the model's own, by request.

        Returns:
            The tokens that are drawn for each request whose row samples.

        Raises:
            AssertionError: A token of a row would read a slot or a state of another text.
        """
        for row in plan.rows:
            self._update_tables(row)
        texts = [self._text(row, requests[row.request]) for row in plan.rows]
        pasts = [self._past(row, requests[row.request]) for row in plan.rows]
        drawn: dict[RequestId, list[int]] = {}
        written = [
            self._write(row, requests[row.request], past, text)
            for row, past, text in zip(plan.rows, pasts, texts, strict=True)
        ]
        for row, text, contents in zip(plan.rows, texts, written, strict=True):
            self._check_reads(row, requests[row.request], text)
            if row.samples:
                draws = [self._model.next_token(c) for c in contents[-row.num_logits :]]
                drawn[row.request] = draws if scripted is None else list(scripted[row.request])
        self._drawn = drawn
        return drawn

    def forget(self, sequences: set[SequenceId]) -> None:
        """Drop the tables of all sequences but those that live."""
        for sequence in self._tables.keys() - sequences:
            del self._tables[sequence]

    def clear(self) -> None:
        """Lose everything, as after a failed step."""
        self.slots.clear()
        self.states.clear()
        self._drawn = {}

    # -- one row ---------------------------------------------------------------------------

    def _update_tables(self, row: PlannedRow) -> None:
        tables = self._tables.setdefault(row.sequence, [{} for _ in row.blocks])
        for table, changes in zip(tables, row.blocks, strict=True):
            table.update(changes)

    def _text(self, row: PlannedRow, known: SimulatedRequest) -> list[int]:
        """Return a row's text up to its end, with the token that the host has not read."""
        text = list(known.request.tokens[: row.position])
        assert len(text) == row.position, "a row begins behind known tokens"
        first = [self._drawn[row.request][0]] if row.on_device else []
        text += [*first, *row.tokens, *row.drafts]
        host = known.request.tokens[: row.end - len(row.drafts)]
        assert text[: len(host)] == host, "a row computes the request's own tokens"
        return text

    def _past(self, row: PlannedRow, known: SimulatedRequest) -> int:
        """Return the content before a row, from a state, a slot, or nothing."""
        if row.position == 0:
            return self._model.root(known.request.salt)
        if self._layout.states:
            newest = self.states.newest(row.sequence)
            assert newest is not None, "a sequence behind position 0 has a state"
            assert newest[0] == row.position, "a state is that of just its position"
            return newest[1]
        return self.slots[self._slot(row.sequence, 0, row.position - 1)]

    def _slot(
        self, sequence: SequenceId, group: int, position: int
    ) -> tuple[int, BlockId, int]:
        index, offset = divmod(position, self._block_size)
        return group, self._tables[sequence][group][index], offset

    def _write(
        self, row: PlannedRow, known: SimulatedRequest, content: int, text: Sequence[int]
    ) -> list[int]:
        """Write a row's contents in every group, keep its states, and return the contents."""
        contents = list[int]()
        for position in range(row.position, row.end):
            words = media_words(known.prompt, position)
            content = self._model.after(content, text[position], words)
            contents.append(content)
            for group in range(len(self._layout.groups)):
                slot = self._slot(row.sequence, group, position)
                assert slot[1] != NULL_BLOCK, "nothing is written to the null block"
                self.slots[slot] = content
        if self._layout.states:
            kept = {row.position + 1 + i: c for i, c in enumerate(contents)}
            self.states.advance(row.sequence, kept if row.in_wave else {row.end: content})
        return contents

    def _check_reads(
        self, row: PlannedRow, known: SimulatedRequest, text: Sequence[int]
    ) -> None:
        """Compare everything that a row sees with the content that belongs there."""
        expected = self._model.contents(known.prompt, known.request.salt, text)
        for group, spec in enumerate(self._layout.groups):
            for position in range(spec.first_visible(row.position), row.end):
                held = self.slots.get(self._slot(row.sequence, group, position))
                assert held == expected[position], (
                    f"request {row.request} reads position {position} of group {group} of "
                    "another text"
                )
        if self._layout.states:
            assert self.states.newest(row.sequence) == (row.end, expected[-1])

    # -- what others read and write --------------------------------------------------------

    def read_block(self, group: int, block: BlockId) -> tuple[int, ...]:
        """Return the contents of a full block."""
        return tuple(self.slots[group, block, offset] for offset in range(self._block_size))

    def write_block(self, group: int, block: BlockId, contents: Sequence[int]) -> None:
        """Write a full block, as a restore does."""
        for offset, content in enumerate(contents):
            self.slots[group, block, offset] = content
