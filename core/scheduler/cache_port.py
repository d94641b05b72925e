"""What the scheduler asks of a cache; the paged coordinator and its flat twin answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..contract.prompt import ExtraKeys
from ..ids import SaltDomain, SequenceId
from .plan import TableChanges


class Hit(Protocol):
    """A prefix that the cache holds."""

    @property
    def length(self) -> int:
        """Usable tokens, block-aligned."""
        ...

    @property
    def awaited(self) -> int:
        """Tokens that will be usable once another live sequence has computed them."""
        ...

    @property
    def unbacked(self) -> int:
        """Tokens behind it whose blocks are held, but not the state at their end."""
        ...


class SnapshotPort(Protocol):
    """Where prefills stop for snapshots of recurrent state."""

    @property
    def enabled(self) -> bool:
        """Whether the model keeps recurrent state."""
        ...

    def boundaries(self, sequence: Any) -> Sequence[int]:
        """Return the positions at which a sequence's prefill has to stop, ascending."""
        ...

    def shared_prefix(self, one: Any, other: Any) -> int:
        """Return the tokens with which two prompts begin alike, if one has to stop there."""
        ...

    def promise(self, sequence: Any, boundaries: Sequence[int]) -> None:
        """Announce where a sequence's prefill will stop, to those that may wait for it."""
        ...

    def reach(self, sequence: Any, state: Any, *, shared: bool) -> None:
        """Take the state of a published boundary, for others now or when the sequence ends."""
        ...


class CachePort(Protocol):
    """The cache of all sequences as one transaction."""

    @property
    def snapshots(self) -> SnapshotPort:
        """Where prefills stop for snapshots."""
        ...

    @property
    def max_usable_blocks(self) -> int:
        """Blocks that sequences may ever hold together, growth included."""
        ...

    @property
    def num_available(self) -> int:
        """Blocks that could be had now: free, evictable or growable."""
        ...

    @property
    def num_publications(self) -> int:
        """Rises whenever what somebody awaits may have been published or given up."""
        ...

    @property
    def max_tokens(self) -> int:
        """The longest sequence that it can hold, growth included."""
        ...

    def num_reserved(self, wanted: Iterable[tuple[Any, int]]) -> int:
        """Return the blocks that sequences lack for so many tokens each."""
        ...

    def admits(
        self, hit: Any, num_tokens: int, wanted: Iterable[tuple[Any, int]], watermark: float
    ) -> bool:
        """Return whether there is room for one more sequence.

        Args:
            hit: What the sequence would begin with.
            num_tokens: Tokens that it must have room for, the hit included.
            wanted: Others that come first, and the tokens that each must have room for.
            watermark: Share of all blocks that is to stay available.
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
        """Return a new sequence that holds nothing yet."""
        ...

    def match_prefix(self, sequence: Any) -> Any:
        """Return the sequence's `Hit`; changes nothing."""
        ...

    def attach(self, sequence: Any, hit: Any) -> None:
        """Give the sequence the hit's blocks."""
        ...

    def reserve(self, sequence: Any, n: int) -> None:
        """Find room for `n` more positions and move the cursor, or raise and change nothing.

        Raises:
            CacheExhaustedError: No room.
        """
        ...

    def reserve_restore(self, sequence: Any, n: int) -> None:
        """Find room for what a restore brings, or raise and change nothing.

        Raises:
            CacheExhaustedError: No room.
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
        """Offer full committed blocks to others; return how many are new."""
        ...

    def release(self, sequence: Any) -> None:
        """Give everything back."""
        ...
