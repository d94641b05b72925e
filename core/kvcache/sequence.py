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
    """Where a sequence is in its life."""

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

        0          num_hit_tokens     frontier           cursor          end of the tables
        |  shared, read  |  own, committed  |  in a step       |  spare     |
        |  by anybody    |  full blocks     |  or in flight,   |            |
        |                |  publishable     |  may be undone   |            |

    Writes fall into `[frontier, cursor)`, hence never into a published block. `tokens` may
    run ahead of the cursor (a prompt in prefill) or behind it (a decode step is planned
    before the host has read the token that it feeds; drafts are recorded when accepted).

    Attributes:
        id: Its name in every group.
        tokens: Known tokens; only `record` appends.
        chain: Identities and hashes of its full blocks.
        tables: One a group.
        num_prompt_blocks: Full blocks of the tokens that it was opened with.
        prompt_boundary: Full blocks before the last one of these tokens.
        num_hit_tokens: Positions that it took over from the prefix table.
        cursor: Positions handed to steps; the next reservation begins here.
        frontier: Positions committed.
        num_published: Leading full blocks that the prefix table knows, by this sequence or
            another.
        owner: The conversation that it belongs to; "" where nobody said so.
        latched: Its prefix came without the recurrent state at its end: nothing of the
            sequence may be used or published.
        reached: The newest state at a boundary that it has computed, published at its end.
        spare: Group index -> blocks held for a window that is being restored.
        status: Where it is in its life; only `move` changes it.
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
        """What besides tokens decides a block, one tuple a block; empty for text."""
        return self.chain.extra_keys

    def move(self, status: SequenceStatus) -> None:
        """Change the status.

        Raises:
            CacheMisuseError: `MOVES` has no such edge.
        """
        if status not in MOVES[self.status]:
            raise self._misuse(f"become {status.value}", f"it is {self.status.value}")
        self.status = status

    def expect(self, status: SequenceStatus, operation: str) -> None:
        """Refuse `operation` in any other status than `status`.

        Raises:
            CacheMisuseError: The status is another one.
        """
        if self.status is not status:
            raise self._misuse(operation, f"it is {self.status.value}, not {status.value}")

    def expect_usable(self, operation: str) -> None:
        """Refuse `operation` unless the sequence is attached and its prefix has its state.

        Raises:
            CacheMisuseError: It is not, or has none: blocks of a hit were found without the
                state of recurrent layers that belongs to them.
        """
        self.expect(SequenceStatus.ATTACHED, operation)
        if self.latched:
            raise self._misuse(
                operation, "its prefix came without the state that belongs to it"
            )

    def start_at(self, num_tokens: int) -> None:
        """Become attached, with the first `num_tokens` positions taken over."""
        self.move(SequenceStatus.ATTACHED)
        self.num_hit_tokens = self.cursor = self.frontier = num_tokens
        self.num_published = num_tokens // self.chain.block_size

    def advance(self, num_tokens: int) -> None:
        """Move the cursor; the tables must reach as far."""
        self.cursor += num_tokens

    def record(self, tokens: abc.Sequence[int]) -> None:
        """Append known tokens.

        A token is the outcome of the position before it, so that one must be in a step.

        Raises:
            CacheMisuseError: It is not, or the sequence is not attached.
        """
        self.expect_usable("record")
        known = len(self.tokens) + len(tokens)
        if known > self.cursor + 1:
            raise self._misuse(
                f"record {len(tokens)} tokens",
                f"{known} would be known, and only {self.cursor} positions are in a step",
            )
        self.tokens.extend(tokens)

    def commit(self, num_tokens: int) -> None:
        """Move the frontier.

        Raises:
            CacheMisuseError: It would pass the cursor or the known tokens, or go back, or the
                sequence is not attached.
        """
        self.expect_usable("commit")
        bound = min(self.cursor, len(self.tokens)) - self.frontier
        if not 0 <= num_tokens <= bound:
            raise self._misuse(f"commit {num_tokens} tokens", f"there are {bound} to commit")
        self.frontier += num_tokens

    def rewind(self, num_tokens: int) -> None:
        """Move the cursor back; blocks are neither erased nor freed.

        Raises:
            CacheMisuseError: It would pass the frontier, or go forth, or the sequence is not
                attached.
        """
        self.expect(SequenceStatus.ATTACHED, "rewind")
        bound = self.cursor - self.frontier
        if not 0 <= num_tokens <= bound:
            raise self._misuse(f"rewind {num_tokens} tokens", f"there are {bound} to undo")
        self.cursor -= num_tokens

    def _misuse(self, operation: str, state: str) -> CacheMisuseError:
        return CacheMisuseError(f"{operation} (sequence {self.id})", state)
