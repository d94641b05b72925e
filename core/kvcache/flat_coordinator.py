"""The bookkeeping of contiguous caches, without prefix sharing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

from ..contract.prompt import ExtraKeys
from ..errors import CacheExhaustedError, CacheMisuseError
from ..ids import SaltDomain, SequenceId
from .block_table import TableChanges
from .no_snapshots import NoSnapshots


@attrs.define(eq=False)
class FlatSequence:
    """The cache side of a request on the flat path.

    Attributes:
        id: The sequence's id.
        cursor: Positions handed to steps.
        frontier: Committed positions.
        released: Whether the sequence has ended.
    """

    id: SequenceId
    cursor: int = 0
    frontier: int = 0
    released: bool = False


@attrs.frozen
class NoHit:
    """The empty prefix hit."""

    length: int = 0
    awaited: int = 0
    unbacked: int = 0


class FlatArrays(Protocol):
    """The contiguous arrays of live sequences; see `engine.lanes.FlatLane`."""

    def rewind(self, sequence: SequenceId, position: int) -> None:
        """Take a sequence's arrays back to an earlier position of its last step."""
        ...

    def release(self, sequence: SequenceId) -> None:
        """Free a sequence's arrays."""
        ...


class FlatCoordinator:
    """Bookkeeping of the flat path: a budget of tokens, counted in blocks.

    The class has the `CachePort` operations of the scheduler. No prefix is found or published.

    Attributes:
        max_usable_blocks: The budget, in blocks.
        num_publications: 0, since blocks are not published.
        snapshots: An empty set of snapshots.
        live: The arrays of live sequences; None in tests of the bookkeeping alone.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.max_usable_blocks = num_blocks
        self.num_publications = 0
        self.snapshots = NoSnapshots()
        self.live: FlatArrays | None = None
        self._block_size = block_size
        self._live: dict[SequenceId, FlatSequence] = {}

    @property
    def num_available(self) -> int:
        """The budget that is left, in blocks."""
        return self.max_usable_blocks - sum(self._blocks_held(s) for s in self._live.values())

    @property
    def max_concurrent_sequences(self) -> int:
        """Sequences that can each hold the tokens of one block."""
        return self.max_usable_blocks

    @property
    def max_tokens(self) -> int:
        """Length in tokens of the longest sequence that the budget allows."""
        return self.max_usable_blocks * self._block_size

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _blocks_held(self, sequence: FlatSequence) -> int:
        return self._blocks_for(sequence.cursor)

    def num_reserved(self, wanted: Iterable[tuple[FlatSequence, int]]) -> int:
        """Return how many blocks sequences lack for the tokens that each is paired with."""
        return sum(
            max(0, self._blocks_for(num_tokens) - self._blocks_held(sequence))
            for sequence, num_tokens in wanted
        )

    def admits(
        self,
        hit: NoHit,
        num_tokens: int,
        wanted: Iterable[tuple[FlatSequence, int]],
        watermark: float,
    ) -> bool:
        """Return whether the budget allows one more sequence."""
        needed = self._blocks_for(num_tokens) + self.num_reserved(wanted)
        return needed + int(watermark * self.max_usable_blocks) <= self.num_available

    def open(
        self,
        sequence_id: SequenceId,
        tokens: Sequence[int],
        *,
        salt: SaltDomain,
        extra_keys: Sequence[ExtraKeys] = (),
        owner: str = "",
    ) -> FlatSequence:
        """Return a new sequence."""
        return FlatSequence(sequence_id)

    def match_prefix(self, sequence: FlatSequence) -> NoHit:
        """Return the empty hit."""
        return NoHit()

    def attach(self, sequence: FlatSequence, hit: NoHit) -> None:
        """Make the sequence live."""
        self._live[sequence.id] = sequence

    def reserve(self, sequence: FlatSequence, n: int) -> None:
        """Move the cursor.

        Raises:
            CacheExhaustedError: The budget does not allow `n` more positions.
        """
        needed = self._blocks_for(sequence.cursor + n) - self._blocks_held(sequence)
        if needed > self.num_available:
            raise CacheExhaustedError(needed, self.num_available)
        sequence.cursor += n

    def reserve_restore(self, sequence: FlatSequence, n: int) -> None:
        """Do the same as `reserve`; the flat path has no restores."""
        self.reserve(sequence, n)

    def record(self, sequence: FlatSequence, tokens: Sequence[int]) -> None:
        """Do nothing: blocks are not hashed."""

    def commit(self, sequence: FlatSequence, n: int) -> None:
        """Move the frontier.

        Raises:
            CacheMisuseError: The frontier would pass the cursor.
        """
        if sequence.frontier + n > sequence.cursor:
            raise CacheMisuseError("commit", f"only {sequence.cursor} positions are reserved")
        sequence.frontier += n

    def rewind(self, sequence: FlatSequence, n: int) -> None:
        """Move the cursor back, to the frontier at most.

        Raises:
            CacheMisuseError: The cursor would pass the frontier.
        """
        if sequence.cursor - n < sequence.frontier:
            raise CacheMisuseError("rewind", f"the frontier is at {sequence.frontier}")
        sequence.cursor -= n
        if self.live is not None:
            self.live.rewind(sequence.id, sequence.cursor)

    def take_table_changes(self, sequence: FlatSequence) -> tuple[TableChanges, ...]:
        """Return no changes: the flat path has no block tables."""
        return ()

    def publish(self, sequence: FlatSequence) -> int:
        """Return 0: blocks are not published."""
        return 0

    def release(self, sequence: FlatSequence) -> None:
        """End the sequence and free its arrays.

        Raises:
            CacheMisuseError: The sequence was released before.
        """
        if sequence.released:
            raise CacheMisuseError("release", "the sequence was released before")
        sequence.released = True
        self._live.pop(sequence.id, None)
        if self.live is not None:
            self.live.release(sequence.id)
