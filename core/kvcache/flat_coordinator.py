"""The bookkeeping of contiguous caches, where nothing is shared."""

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
        id: Its name.
        cursor: Positions handed to steps.
        frontier: Committed positions.
        released: Whether it was given back.
    """

    id: SequenceId
    cursor: int = 0
    frontier: int = 0
    released: bool = False


@attrs.frozen
class NoHit:
    """The only hit of a cache that shares nothing."""

    length: int = 0
    awaited: int = 0
    unbacked: int = 0


class FlatArrays(Protocol):
    """The contiguous arrays of live sequences; see `engine.lanes.FlatLane`."""

    def rewind(self, sequence: SequenceId, position: int) -> None:
        """Take a sequence's arrays back to an earlier position of its last step."""
        ...

    def release(self, sequence: SequenceId) -> None:
        """Forget a sequence's arrays."""
        ...


class FlatCoordinator:
    """Bookkeeping of the flat path: a budget of tokens, counted in blocks like the paged one.

    It has the methods of the paged coordinator that the scheduler needs; nothing is ever
    found and nothing published.

    Attributes:
        max_usable_blocks: The budget, in blocks.
        num_publications: 0, since nothing is published.
        snapshots: None are kept.
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
        """Blocks' worth of tokens that may still be written."""
        return self.max_usable_blocks - sum(self._blocks_held(s) for s in self._live.values())

    @property
    def max_concurrent_sequences(self) -> int:
        """Sequences that can have a block's worth of tokens each."""
        return self.max_usable_blocks

    @property
    def max_tokens(self) -> int:
        """The longest sequence that the budget allows."""
        return self.max_usable_blocks * self._block_size

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _blocks_held(self, sequence: FlatSequence) -> int:
        return self._blocks_for(sequence.cursor)

    def num_reserved(self, wanted: Iterable[tuple[FlatSequence, int]]) -> int:
        """Return the blocks' worth of what sequences lack for so many tokens each."""
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
        """Return whether the budget holds for one more sequence."""
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
        """Move the cursor if the budget holds.

        Raises:
            CacheExhaustedError: It does not.
        """
        needed = self._blocks_for(sequence.cursor + n) - self._blocks_held(sequence)
        if needed > self.num_available:
            raise CacheExhaustedError(needed, self.num_available)
        sequence.cursor += n

    def reserve_restore(self, sequence: FlatSequence, n: int) -> None:
        """Do as `reserve`: nothing of it is ever asked for."""
        self.reserve(sequence, n)

    def record(self, sequence: FlatSequence, tokens: Sequence[int]) -> None:
        """Do nothing: no block is named after its tokens."""

    def commit(self, sequence: FlatSequence, n: int) -> None:
        """Move the frontier.

        Raises:
            CacheMisuseError: Beyond the cursor.
        """
        if sequence.frontier + n > sequence.cursor:
            raise CacheMisuseError("commit", f"only {sequence.cursor} positions are reserved")
        sequence.frontier += n

    def rewind(self, sequence: FlatSequence, n: int) -> None:
        """Move the cursor back, to the frontier at most.

        Raises:
            CacheMisuseError: It would pass the frontier.
        """
        if sequence.cursor - n < sequence.frontier:
            raise CacheMisuseError("rewind", f"the frontier is at {sequence.frontier}")
        sequence.cursor -= n
        if self.live is not None:
            self.live.rewind(sequence.id, sequence.cursor)

    def take_table_changes(self, sequence: FlatSequence) -> tuple[TableChanges, ...]:
        """Return none: there are no tables."""
        return ()

    def publish(self, sequence: FlatSequence) -> int:
        """Return 0: nothing is shared."""
        return 0

    def release(self, sequence: FlatSequence) -> None:
        """Give the sequence back.

        Raises:
            CacheMisuseError: It was given back before.
        """
        if sequence.released:
            raise CacheMisuseError("release", "the sequence was released before")
        sequence.released = True
        self._live.pop(sequence.id, None)
        if self.live is not None:
            self.live.release(sequence.id)
