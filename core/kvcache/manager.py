"""What the coordinator asks of every kind of cache group.

A manager does the bookkeeping of all groups of one kind: full attention, sliding windows, or
recurrent states. A new kind of cache is a new manager; the coordinator knows none by name.
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
        num_blocks: Its blocks.
        blocks: Group index -> that many table entries, first block first; the null block where
            a window has moved on. No reference is held.
        state: A kept recurrent state at the end of the prefix; None for other kinds.
    """

    num_blocks: int
    blocks: Mapping[int, list[Block]] = attrs.field(factory=dict)
    state: Any = None


class Manager(Protocol):
    """The groups of one kind.

    A sequence passes through the operations in this order::

        find -> attach -> (make_room, reserve, publish, commit, expire)* -> release
                                   rewind undoes positions that no commit has covered

    Attributes:
        groups: The attention groups of the kind; none for recurrent states.
    """

    groups: Sequence[BlockGroup]

    def find(self, chain: PrefixChain, limit: int) -> Found:
        """Return the longest prefix of at most `limit` blocks to continue from.

        Takes no reference and changes nothing.
        """
        ...

    def attach(self, sequence: CacheSequence, found: Found) -> None:
        """Give a new sequence a prefix that `find` has returned since the last change."""
        ...

    def make_room(self, sequence: CacheSequence, end: int) -> None:
        """Make sure that `reserve` up to position `end` succeeds.

        Raises:
            CacheExhaustedError: A group has too few blocks. Pools may have grown, and blocks
                that a window has moved past may be gone, nothing else.
        """
        ...

    def reserve(self, sequence: CacheSequence, end: int) -> None:
        """Back the positions from the cursor to `end`; `make_room` has succeeded."""
        ...

    def make_restore_room(self, sequence: CacheSequence, end: int) -> None:
        """Make sure that `reserve_restore` up to position `end` succeeds.

        Raises:
            CacheExhaustedError: As `make_room`.
        """
        ...

    def reserve_restore(self, sequence: CacheSequence, end: int) -> None:
        """Back the positions from the cursor to `end`, which a restore will fill."""
        ...

    def publish(self, sequence: CacheSequence, index: int) -> bool:
        """Offer a committed full block to other sequences.

        Returns:
            False if another content has the block's hash: the chain ends here.
        """
        ...

    def commit(self, sequence: CacheSequence, first: int) -> None:
        """Keep what is worth it at the boundaries of blocks `[first, num_published)`."""
        ...

    def check_rewind(self, sequence: CacheSequence, end: int) -> None:
        """Refuse a rewind to position `end` that `rewind` could not carry out.

        Raises:
            CacheMisuseError: The group no longer has what position `end` needs.
        """
        ...

    def rewind(self, sequence: CacheSequence) -> None:
        """Forget the positions behind the cursor, which has just moved back."""
        ...

    def expire(self, sequence: CacheSequence) -> None:
        """Give back what no position from the frontier on can see."""
        ...

    def release(self, sequence: CacheSequence) -> None:
        """Give back everything that the sequence holds."""
        ...

    def clear(self) -> None:
        """Forget what outlives sequences."""
        ...


class Finder(Protocol):
    """Whatever finds the longest prefix that it can continue from."""

    def find(self, chain: PrefixChain, limit: int) -> Found:
        """Return the longest prefix of at most `limit` blocks."""
        ...


def find_agreed(finders: Sequence[Finder], chain: PrefixChain, limit: int) -> tuple[Found, ...]:
    """Return what each finder holds of the longest prefix that all of them hold.

    Every finder is asked for its longest prefix up to a limit. Where the answers differ, the
    shortest one is the next limit, and all are asked again. Each round but the last lowers the
    limit by one block at least, so the search ends.

    Args:
        finders: At least one.
        chain: The prompt's full blocks, hashed.
        limit: At most this many blocks.

    Source: the fixed point of vLLM's hybrid coordinator.
    """
    while True:
        found = tuple(finder.find(chain, limit) for finder in finders)
        shortest = min(answer.num_blocks for answer in found)
        if all(answer.num_blocks == shortest for answer in found):
            return found
        limit = shortest
