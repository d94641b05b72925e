from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from neve.errors import CacheMisuseError
from neve.ids import NULL_BLOCK, SequenceId
from neve.kvcache.block import Block
from neve.kvcache.block_identity import PrefixChain
from neve.kvcache.block_table import BlockTable
from neve.kvcache.sequence import MOVES, Sequence, SequenceStatus


def make_sequence(num_tokens: int = 8, block_size: int = 4) -> Sequence:
    return Sequence(
        id=SequenceId(7),
        tokens=list(range(num_tokens)),
        chain=PrefixChain(block_size),
        tables=(BlockTable(block_size, Block(NULL_BLOCK)),),
        num_prompt_blocks=num_tokens // block_size,
    )


def make_attached(num_tokens: int = 8, cursor: int = 0, frontier: int = 0) -> Sequence:
    sequence = make_sequence(num_tokens)
    sequence.start_at(0)
    sequence.advance(cursor)
    sequence.commit(frontier)
    return sequence


@pytest.mark.parametrize("start", SequenceStatus)
@pytest.mark.parametrize("to", SequenceStatus)
def test_moves_are_those_of_the_table(start: SequenceStatus, to: SequenceStatus) -> None:
    """KV-8: a status changes along the table's edges only."""
    sequence = make_sequence()
    sequence.status = start
    if to in MOVES[start]:
        sequence.move(to)

        assert sequence.status is to
        return
    with pytest.raises(CacheMisuseError, match=f"the sequence is {start.value}"):
        sequence.move(to)
    assert sequence.status is start


def test_a_hit_moves_all_cursors() -> None:
    """KV-8: positions taken over are computed, committed and published."""
    sequence = make_sequence()
    sequence.start_at(4)

    assert (sequence.cursor, sequence.frontier, sequence.num_published) == (4, 4, 1)
    assert sequence.num_hit_tokens == 4


def test_a_settled_step_commits_then_records() -> None:
    """KV-8: the last token's outcome is recorded once the token is in a step."""
    sequence = make_attached(num_tokens=8, cursor=8)
    sequence.commit(8)
    sequence.record([42])
    sequence.advance(1)
    sequence.commit(1)
    sequence.record([43])

    assert sequence.tokens[8:] == [42, 43]
    assert (sequence.cursor, sequence.frontier) == (9, 9)


def test_a_step_may_be_planned_before_its_token_is_known() -> None:
    """SC-9: the cursor runs ahead of the tokens; the frontier never does."""
    sequence = make_attached(num_tokens=8, cursor=8, frontier=8)
    sequence.advance(1)

    with pytest.raises(CacheMisuseError, match="there are 0 to commit"):
        sequence.commit(1)
    sequence.record([42])
    sequence.commit(1)
    assert (sequence.cursor, sequence.frontier, len(sequence.tokens)) == (9, 9, 9)


def test_accepted_drafts_are_recorded_before_they_are_committed() -> None:
    """SP-1: drafts are positions in a step; the rejected ones are rolled back."""
    sequence = make_attached(num_tokens=8, cursor=7, frontier=7)
    sequence.advance(4)  # the last token and three drafts
    sequence.record([42])  # one draft accepted
    sequence.commit(2)
    sequence.record([43])  # the target's own token
    sequence.rewind(2)

    assert (sequence.cursor, sequence.frontier, len(sequence.tokens)) == (9, 9, 10)


def test_recording_inside_the_prompt_is_refused() -> None:
    """KV-8: a token cannot be known before the one it follows was in a step."""
    sequence = make_attached(num_tokens=8, cursor=7)

    with pytest.raises(CacheMisuseError, match=r"record 1 tokens \(sequence 7\).*only 7"):
        sequence.record([42])
    assert len(sequence.tokens) == 8


@pytest.mark.parametrize("n", [-1, 3])
def test_the_frontier_stops_at_the_cursor(n: int) -> None:
    """KV-8: what was not computed is not committed, and a commit is final."""
    sequence = make_attached(num_tokens=8, cursor=2)

    with pytest.raises(CacheMisuseError, match="there are 2 to commit"):
        sequence.commit(n)
    assert sequence.frontier == 0


@pytest.mark.parametrize("n", [-1, 3])
def test_rewind_stops_at_the_frontier(n: int) -> None:
    """SP-1: only what was not committed is undone."""
    sequence = make_attached(num_tokens=8, cursor=4, frontier=2)

    with pytest.raises(CacheMisuseError, match="there are 2 to undo"):
        sequence.rewind(n)
    sequence.rewind(2)
    assert sequence.cursor == 2


@pytest.mark.parametrize("status", [SequenceStatus.NEW, SequenceStatus.RELEASED])
def test_only_an_attached_sequence_is_used(status: SequenceStatus) -> None:
    """KV-8: use before attachment or after release is an error."""
    sequence = make_sequence()
    sequence.status = status

    with pytest.raises(CacheMisuseError, match=f"the sequence is {status.value}, not attached"):
        sequence.record([])
    with pytest.raises(CacheMisuseError, match=f"the sequence is {status.value}, not attached"):
        sequence.commit(0)
    with pytest.raises(CacheMisuseError, match=f"the sequence is {status.value}, not attached"):
        sequence.rewind(0)


def test_a_latched_sequence_is_not_used() -> None:
    """GR-6: a prefix without its state yields no token, and its frontier stands still."""
    sequence = make_attached(num_tokens=8, cursor=8, frontier=4)
    sequence.latched = True

    with pytest.raises(CacheMisuseError, match="the snapshot of its prefix is missing"):
        sequence.record([42])
    with pytest.raises(CacheMisuseError, match="the snapshot of its prefix is missing"):
        sequence.commit(1)
    assert (sequence.frontier, len(sequence.tokens)) == (4, 8)
    sequence.rewind(4)  # to undo a step needs no state
    sequence.latched = False
    sequence.advance(1)
    sequence.commit(1)
    assert sequence.frontier == 5


class SequenceMachine(RuleBasedStateMachine):
    """KV-8: cursor, frontier and tokens against three integers; misuse changes nothing."""

    @initialize(tokens=st.integers(1, 6))
    def start(self, tokens: int) -> None:
        self.real = make_sequence(tokens)
        self.status = SequenceStatus.NEW
        self.known, self.cursor, self.frontier = tokens, 0, 0

    def attempt(self, allowed: bool, operation: str, argument: object) -> bool:
        allowed = allowed and self.status is SequenceStatus.ATTACHED
        if allowed:
            getattr(self.real, operation)(argument)
        else:
            with pytest.raises(CacheMisuseError):
                getattr(self.real, operation)(argument)
        return allowed

    @rule(to=st.sampled_from([s for s in SequenceStatus if s is not SequenceStatus.ATTACHED]))
    def move(self, to: SequenceStatus) -> None:
        if to in MOVES[self.status]:
            self.real.move(to)
            self.status = to
        else:
            with pytest.raises(CacheMisuseError):
                self.real.move(to)

    @rule()
    def attach(self) -> None:
        if self.status is SequenceStatus.NEW:
            self.real.start_at(0)
            self.status = SequenceStatus.ATTACHED
        else:
            with pytest.raises(CacheMisuseError):
                self.real.start_at(0)

    @rule(n=st.integers(0, 4))
    def advance(self, n: int) -> None:
        if self.status is SequenceStatus.ATTACHED:
            self.real.advance(n)
            self.cursor += n

    @rule(n=st.integers(0, 3))
    def record(self, n: int) -> None:
        if self.attempt(self.known + n <= self.cursor + 1, "record", [0] * n):
            self.known += n

    @rule(n=st.integers(-2, 4))
    def commit(self, n: int) -> None:
        fits = self.frontier + n <= self.cursor and self.frontier + n <= self.known
        if self.attempt(n >= 0 and fits, "commit", n):
            self.frontier += n

    @rule(n=st.integers(-2, 4))
    def rewind(self, n: int) -> None:
        if self.attempt(n >= 0 and self.cursor - n >= self.frontier, "rewind", n):
            self.cursor -= n

    @invariant()
    def agrees(self) -> None:
        real = self.real
        assert real.status is self.status
        assert (len(real.tokens), real.cursor, real.frontier) == (
            self.known,
            self.cursor,
            self.frontier,
        )


SequenceMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None
)
test_sequence_machine = SequenceMachine.TestCase
