"""Recurrent states kept in memory, by the prefix that they sum up. Pure bookkeeping.

A state is the sum of every token before it, so it is good for one boundary of one chain and
no other. What a snapshot holds is somebody else's business: here it is a handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from attrs import validators

from ..ids import BlockHash


@attrs.frozen(eq=False)
class Snapshot:
    """A state at a boundary.

    Attributes:
        owner: The conversation that published it; "" where nobody said who.
        chain: Hashes of a chain that reaches the boundary, first block first. It may be a
            sequence's own list, which only grows.
        num_blocks: Blocks of the chain that the state sums up.
        boundary: The tokens of those blocks.
        num_bytes: What the state takes.
        handle: The state; None where blocks hold it.
        protected: It must not be given up while there is another.
    """

    owner: str
    chain: Sequence[BlockHash] = attrs.field(repr=False)
    num_blocks: int = attrs.field(validator=validators.ge(1))
    boundary: int = attrs.field(validator=validators.ge(1))
    num_bytes: int = attrs.field(default=0, validator=validators.ge(0))
    handle: Any = attrs.field(default=None, repr=False)
    protected: bool = False

    def __attrs_post_init__(self) -> None:
        if len(self.chain) < self.num_blocks:
            raise ValueError(
                f"a snapshot after {self.num_blocks} blocks needs their hashes, "
                f"got {len(self.chain)}"
            )

    @property
    def hash(self) -> BlockHash:
        """Hash of the last block, which names the whole prefix."""
        return self.chain[self.num_blocks - 1]

    def lies_on(self, chain: Sequence[BlockHash]) -> bool:
        """Return whether its prefix is a prefix of `chain`, or all of it."""
        return self.num_blocks <= len(chain) and chain[self.num_blocks - 1] == self.hash

    def is_ancestor_of(self, other: Snapshot) -> bool:
        """Return whether its prefix is a shorter prefix of the other one's."""
        return self.num_blocks < other.num_blocks and self.lies_on(other.chain)


class Snapshots:
    """All snapshots in publish order, one an owner and prefix. Owned by the engine thread.

    There are a handful of them (see `retention`), so they are searched, not indexed.
    """

    def __init__(self) -> None:
        self._entries: list[Snapshot] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Snapshot, ...]:
        """The snapshots, the one that was published first in front."""
        return tuple(self._entries)

    @property
    def num_bytes(self) -> int:
        """Bytes of all states. A state that two owners published counts twice."""
        return sum(entry.num_bytes for entry in self._entries)

    def put(self, snapshot: Snapshot) -> None:
        """Add a snapshot as the newest; its owner's one of the same prefix gives way."""
        self._entries = [
            entry
            for entry in self._entries
            if (entry.owner, entry.hash) != (snapshot.owner, snapshot.hash)
        ]
        self._entries.append(snapshot)

    def get(self, block_hash: BlockHash) -> Snapshot | None:
        """Return the newest snapshot of the prefix that ends with that block, anybody's."""
        found = (entry for entry in reversed(self._entries) if entry.hash == block_hash)
        return next(found, None)

    def expose(self, snapshot: Snapshot) -> None:
        """Take a snapshot's protection away; its place among the others stays."""
        self._entries = [
            attrs.evolve(entry, protected=False) if entry is snapshot else entry
            for entry in self._entries
        ]

    def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; nothing happens if it is gone."""
        self._entries = [entry for entry in self._entries if entry is not snapshot]

    def clear(self) -> None:
        """Forget all of them."""
        self._entries = []

    def deepest_boundary(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks end at the deepest boundary with a state; or 0.

        Args:
            hashes: A chain, first block first.
        """
        kept = (entry.num_blocks for entry in self._entries if entry.lies_on(hashes))
        return max(kept, default=0)
