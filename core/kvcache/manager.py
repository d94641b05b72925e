"""The interface of cache managers.

A manager does the bookkeeping of all groups of one kind: full attention, sliding windows, or
recurrent states. A new kind of cache is a new manager: the coordinator knows no kind by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from .block import Block
from .block_group import BlockGroup
from .block_identity import PrefixChain
from .sequence import Sequence as CacheSequence


@attrs.frozen(eq=False)
class Found:
    """The longest prefix that the groups of one kind can continue from.

    Attributes:
        num_blocks: Length of the prefix in blocks.
        blocks: Group index -> `num_blocks` table entries, first block first. Entries before a
            window are the null block. No reference is held.
        state: A snapshot of recurrent state at the end of the prefix; None for other kinds.
    """

    num_blocks: int
    blocks: Mapping[int, list[Block]] = attrs.field(factory=dict)
    state: Any = None


class Manager(Protocol):
    """The groups of one kind.

    The order of the operations on a sequence::

        find -> attach -> (make_room, reserve, [rewind], publish, commit, expire)* -> release

    `rewind` drops reserved positions that are not committed.

    Attributes:
        groups: The attention groups of the kind; none for recurrent states.
    """

    groups: Sequence[BlockGroup]

    def find(self, chain: PrefixChain, limit: int) -> Found:
        """Return the longest usable prefix of at most `limit` blocks.

        No reference is taken.
        """
        ...

    def attach(self, sequence: CacheSequence, found: Found) -> None:
        """Give a new sequence the prefix of a `find` after which the cache has not changed."""
        ...

    def make_room(self, sequence: CacheSequence, end: int) -> None:
        """Make sure that `reserve` up to position `end` succeeds.

        Raises:
            CacheExhaustedError: A group has too few blocks. Pools may have grown, and the
                sequence may have lost blocks that a window has moved past. Nothing else
                was changed.
        """
        ...

    def reserve(self, sequence: CacheSequence, end: int) -> None:
        """Back the positions from the cursor to `end`. Call `make_room` first."""
        ...

    def make_restore_room(self, sequence: CacheSequence, end: int) -> None:
        """Make sure that `reserve_restore` up to position `end` succeeds.

        Raises:
            CacheExhaustedError: As `make_room`.
        """
        ...

    def reserve_restore(self, sequence: CacheSequence, end: int) -> None:
        """Back the positions from the cursor to `end` for a restore."""
        ...

    def publish(self, sequence: CacheSequence, index: int) -> bool:
        """Make a committed full block available to other sequences.

        Returns:
            False if the block's hash belongs to other content. The chain then ends here.
        """
        ...

    def commit(self, sequence: CacheSequence, first: int) -> None:
        """Pin or keep boundaries of the published blocks `[first, num_published)`."""
        ...

    def check_rewind(self, sequence: CacheSequence, end: int) -> None:
        """Refuse a rewind to position `end` if `rewind` would fail.

        Raises:
            CacheMisuseError: The window of position `end` is no longer held.
        """
        ...

    def rewind(self, sequence: CacheSequence) -> None:
        """Drop the positions from the cursor on, after the cursor has moved back."""
        ...

    def expire(self, sequence: CacheSequence) -> None:
        """Release blocks that no position from the frontier on sees."""
        ...

    def release(self, sequence: CacheSequence) -> None:
        """Release everything that the sequence holds."""
        ...

    def clear(self) -> None:
        """Drop snapshots and pins, which outlive sequences."""
        ...


class Finder(Protocol):
    """Finds the longest usable prefix of a chain."""

    def find(self, chain: PrefixChain, limit: int) -> Found:
        """Return the longest prefix of at most `limit` blocks."""
        ...


def find_agreed(finders: Sequence[Finder], chain: PrefixChain, limit: int) -> tuple[Found, ...]:
    """Return each finder's answer for the longest prefix that all finders can use.

    Every finder searches up to a limit. If the answers differ, the shortest answer is the
    next limit. Each round but the last lowers the limit by at least one block, so the search
    ends.

    Args:
        finders: At least one.
        chain: The prompt's full blocks, hashed.
        limit: Most blocks of the prefix.

    Source: the fixed point of vLLM's hybrid coordinator.
    """
    while True:
        found = tuple(finder.find(chain, limit) for finder in finders)
        shortest = min(answer.num_blocks for answer in found)
        if all(answer.num_blocks == shortest for answer in found):
            return found
        limit = shortest
