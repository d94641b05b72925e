"""The cache side of one request."""

from __future__ import annotations

import enum
from collections import abc
from collections.abc import Mapping

import attrs

from ..errors import CacheMisuseError
from ..ids import SaltDomain, SequenceId
from .block import Block
from .block_identity import ExtraKeys, PrefixChain
from .block_table import BlockTable
from .state_keeper import KeptState


class SequenceStatus(enum.Enum):
    """The status of a sequence."""

    NEW = "new"
    ATTACHED = "attached"
    RELEASED = "released"


MOVES: Mapping[SequenceStatus, frozenset[SequenceStatus]] = {
    SequenceStatus.NEW: frozenset({SequenceStatus.ATTACHED, SequenceStatus.RELEASED}),
    SequenceStatus.ATTACHED: frozenset({SequenceStatus.RELEASED}),
    SequenceStatus.RELEASED: frozenset(),
}
"""Status -> the statuses that may follow."""


@attrs.define(eq=False)
class Sequence:
    """One request's tokens, cursors and blocks, the same in every group.

    ::

        0         num_hit_tokens    frontier          cursor         end of the tables
        |  prefix hit,  |  own, committed, |  in steps that  |  not used yet  |
        |  shared       |  full blocks can |  are planned,   |                |
        |               |  be published    |  can be rewound |                |

    Steps write to `[frontier, cursor)` only, so published blocks are never written. `tokens`
    may be longer than the cursor (a prompt in prefill) or shorter: a decode step is planned
    before the host reads the token that the step feeds, and drafts are recorded only when
    accepted.

    Attributes:
        id: The sequence's id, the same in every group.
        tokens: Known tokens; only `record` appends.
        chain: Identities and hashes of the sequence's full blocks.
        tables: One block table per group.
        num_prompt_blocks: Full blocks of the tokens at `open`.
        prompt_boundary: Full blocks before the last of the tokens at `open`.
        num_hit_tokens: Positions of the prefix hit.
        cursor: Positions handed to steps; the next reservation begins here.
        frontier: Committed positions.
        num_published: Leading full blocks in the prefix table, published by any sequence.
        owner: The conversation of the request; "" if the caller named none.
        latched: Whether the snapshot of the prefix is missing. A latched sequence must not be
            used or published.
        reached: The newest computed state at a boundary; `release` publishes the state.
        spare: Group index -> blocks held for a window that is being restored.
        status: The status; only `move` changes the status.
    """

    id: SequenceId
    tokens: list[int]
    chain: PrefixChain
    tables: tuple[BlockTable, ...]
    num_prompt_blocks: int
    prompt_boundary: int = 0
    num_hit_tokens: int = 0
    cursor: int = 0
    frontier: int = 0
    num_published: int = 0
    owner: str = ""
    latched: bool = False
    reached: KeptState | None = None
    spare: dict[int, list[Block]] = attrs.field(factory=dict)
    status: SequenceStatus = SequenceStatus.NEW

    @property
    def salt(self) -> SaltDomain:
        """Sharing domain."""
        return self.chain.salt

    @property
    def extra_keys(self) -> tuple[ExtraKeys, ...]:
        """Identity of the blocks beside tokens, one tuple per block; empty for text."""
        return self.chain.extra_keys

    def move(self, status: SequenceStatus) -> None:
        """Change the status.

        Raises:
            CacheMisuseError: `MOVES` does not allow the change.
        """
        if status not in MOVES[self.status]:
            raise self._misuse(f"become {status.value}", f"the sequence is {self.status.value}")
        self.status = status

    def expect(self, status: SequenceStatus, operation: str) -> None:
        """Refuse `operation` in any other status than `status`.

        Raises:
            CacheMisuseError: The status is another one.
        """
        if self.status is not status:
            state = f"the sequence is {self.status.value}, not {status.value}"
            raise self._misuse(operation, state)

    def expect_usable(self, operation: str) -> None:
        """Refuse `operation` unless the sequence is attached and not latched.

        Raises:
            CacheMisuseError: The sequence is not attached, or is latched: the blocks of its
                prefix were found without the snapshot of the recurrent layers.
        """
        self.expect(SequenceStatus.ATTACHED, operation)
        if self.latched:
            raise self._misuse(operation, "the snapshot of its prefix is missing")

    def start_at(self, num_tokens: int) -> None:
        """Become attached, with a prefix hit of `num_tokens` tokens."""
        self.move(SequenceStatus.ATTACHED)
        self.num_hit_tokens = self.cursor = self.frontier = num_tokens
        self.num_published = num_tokens // self.chain.block_size

    def advance(self, num_tokens: int) -> None:
        """Move the cursor. The tables must back the new positions."""
        self.cursor += num_tokens

    def record(self, tokens: abc.Sequence[int]) -> None:
        """Append known tokens.

        A token is sampled from the logits of the previous position, so a step must have
        computed that position.

        Raises:
            CacheMisuseError: The previous position is not in a step, or the sequence is not
                usable.
        """
        self.expect_usable("record")
        known = len(self.tokens) + len(tokens)
        if known > self.cursor + 1:
            raise self._misuse(
                f"record {len(tokens)} tokens",
                f"{known} tokens would be known, but only {self.cursor} positions are in steps",
            )
        self.tokens.extend(tokens)

    def commit(self, num_tokens: int) -> None:
        """Move the frontier.

        Raises:
            CacheMisuseError: The frontier would pass the cursor or the known tokens, or move
                back; or the sequence is not usable.
        """
        self.expect_usable("commit")
        bound = min(self.cursor, len(self.tokens)) - self.frontier
        if not 0 <= num_tokens <= bound:
            raise self._misuse(f"commit {num_tokens} tokens", f"there are {bound} to commit")
        self.frontier += num_tokens

    def rewind(self, num_tokens: int) -> None:
        """Move the cursor back; blocks are neither erased nor freed.

        Raises:
            CacheMisuseError: The cursor would pass the frontier, or move forward; or the
                sequence is not attached.
        """
        self.expect(SequenceStatus.ATTACHED, "rewind")
        bound = self.cursor - self.frontier
        if not 0 <= num_tokens <= bound:
            raise self._misuse(f"rewind {num_tokens} tokens", f"there are {bound} to undo")
        self.cursor -= num_tokens

    def _misuse(self, operation: str, state: str) -> CacheMisuseError:
        return CacheMisuseError(f"{operation} (sequence {self.id})", state)
