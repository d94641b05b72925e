"""The scheduler's interface to the cache: the paged or the flat coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..contract.prompt import ExtraKeys
from ..ids import SaltDomain, SequenceId
from .plan import TableChanges


class Hit(Protocol):
    """A prefix in the cache."""

    @property
    def length(self) -> int:
        """Length in tokens, a multiple of the block size."""
        ...

    @property
    def awaited(self) -> int:
        """Length in tokens after live sequences have published their pending blocks."""
        ...

    @property
    def unbacked(self) -> int:
        """Tokens behind the hit with published blocks, without the state at their end."""
        ...


class SnapshotPort(Protocol):
    """Snapshots of recurrent state, and the boundaries at which prefills stop for them."""

    @property
    def enabled(self) -> bool:
        """Whether the model has recurrent layers."""
        ...

    def boundaries(self, sequence: Any) -> Sequence[int]:
        """Return the positions at which a sequence's prefill stops, ascending."""
        ...

    def shared_prefix(self, one: Any, other: Any) -> int:
        """Return the common prefix of two prompts in tokens; 0 if no snapshot is needed."""
        ...

    def promise(self, sequence: Any, boundaries: Sequence[int]) -> None:
        """Mark the boundaries of a prefill as pending, so that other requests may wait."""
        ...

    def reach(self, sequence: Any, state: Any, *, shared: bool) -> None:
        """Take the state at a boundary. `shared` publishes now, else at `release`."""
        ...


class CachePort(Protocol):
    """The cache of all sequences as one transaction."""

    @property
    def snapshots(self) -> SnapshotPort:
        """The snapshots of recurrent state."""
        ...

    @property
    def max_usable_blocks(self) -> int:
        """Blocks that all sequences together can hold at most, growth included."""
        ...

    @property
    def num_available(self) -> int:
        """Free, evictable or growable blocks."""
        ...

    @property
    def num_publications(self) -> int:
        """Rises when blocks or snapshots are published, or when pending ones are withdrawn."""
        ...

    @property
    def max_tokens(self) -> int:
        """Length in tokens of the longest sequence that fits, growth included."""
        ...

    def num_reserved(self, wanted: Iterable[tuple[Any, int]]) -> int:
        """Return how many blocks sequences lack for the tokens that each is paired with."""
        ...

    def admits(
        self, hit: Any, num_tokens: int, wanted: Iterable[tuple[Any, int]], watermark: float
    ) -> bool:
        """Return whether the cache has blocks for one more sequence.

        Args:
            hit: The prefix hit of the sequence.
            num_tokens: Tokens that the sequence must have room for, the hit included.
            wanted: Sequences that come first, each with the tokens that it must have room for.
            watermark: Fraction of all blocks that must stay available.
        """
        ...

    def open(
        self,
        sequence_id: SequenceId,
        tokens: Sequence[int],
        *,
        salt: SaltDomain,
        extra_keys: Sequence[ExtraKeys] = (),
        owner: str = "",
    ) -> Any:
        """Return a new sequence without blocks."""
        ...

    def match_prefix(self, sequence: Any) -> Any:
        """Return the sequence's `Hit`. No reference is taken."""
        ...

    def attach(self, sequence: Any, hit: Any) -> None:
        """Give the sequence the hit's blocks."""
        ...

    def reserve(self, sequence: Any, n: int) -> None:
        """Back the next `n` positions with blocks and move the cursor.

        Raises:
            CacheExhaustedError: Too few blocks; the cursor was not moved.
        """
        ...

    def reserve_restore(self, sequence: Any, n: int) -> None:
        """Back the next `n` positions with blocks for a restore and move the cursor.

        Raises:
            CacheExhaustedError: Too few blocks; the cursor was not moved.
        """
        ...

    def record(self, sequence: Any, tokens: Sequence[int]) -> None:
        """Append known tokens."""
        ...

    def commit(self, sequence: Any, n: int) -> None:
        """Move the frontier."""
        ...

    def rewind(self, sequence: Any, n: int) -> None:
        """Move the cursor back by `n` positions that are not committed."""
        ...

    def take_table_changes(self, sequence: Any) -> tuple[TableChanges, ...]:
        """Return the changes of a sequence's block tables since the last call, by group."""
        ...

    def publish(self, sequence: Any) -> int:
        """Publish full committed blocks; return how many are newly published."""
        ...

    def release(self, sequence: Any) -> None:
        """Drop all references and end the sequence."""
        ...
