"""Snapshots in memory, found by the prefix that they belong to. Pure bookkeeping.

A recurrent state depends on every token before it, so a snapshot is valid for one boundary of
one chain only. The arrays of a snapshot are an opaque handle here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from attrs import validators

from ..ids import BlockHash


@attrs.frozen(eq=False)
class Snapshot:
    """A kept state at a boundary.

    Attributes:
        owner: The conversation that published the snapshot; "" if the caller named none.
        chain: Hashes of a chain that reaches the boundary, first block first. The list may
            belong to a live sequence, which only appends.
        num_blocks: The boundary in blocks.
        boundary: The boundary in tokens.
        num_bytes: Bytes of the state.
        handle: The state; None for windows, whose blocks hold the state.
        protected: Whether unprotected snapshots are dropped first.
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
        """Hash of the last block, which identifies the whole prefix."""
        return self.chain[self.num_blocks - 1]

    def lies_on(self, chain: Sequence[BlockHash]) -> bool:
        """Return whether the snapshot's prefix is a prefix of `chain`, or all of `chain`."""
        return self.num_blocks <= len(chain) and chain[self.num_blocks - 1] == self.hash

    def is_ancestor_of(self, other: Snapshot) -> bool:
        """Return whether the snapshot's prefix is a proper prefix of the other's."""
        return self.num_blocks < other.num_blocks and self.lies_on(other.chain)


class Snapshots:
    """All snapshots in publish order, at most one per owner and prefix.

    The number of snapshots is small (see `retention`), so lookups search the list. Owned by
    the engine thread.
    """

    def __init__(self) -> None:
        self._entries: list[Snapshot] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Snapshot, ...]:
        """The snapshots in publish order."""
        return tuple(self._entries)

    @property
    def num_bytes(self) -> int:
        """Bytes of all states. A state that two owners published counts twice."""
        return sum(entry.num_bytes for entry in self._entries)

    def put(self, snapshot: Snapshot) -> None:
        """Add a snapshot as the newest; an older one of its owner and prefix is dropped."""
        self._entries = [
            entry
            for entry in self._entries
            if (entry.owner, entry.hash) != (snapshot.owner, snapshot.hash)
        ]
        self._entries.append(snapshot)

    def get(self, block_hash: BlockHash) -> Snapshot | None:
        """Return the newest snapshot, of any owner, of the prefix that ends with a block."""
        found = (entry for entry in reversed(self._entries) if entry.hash == block_hash)
        return next(found, None)

    def expose(self, snapshot: Snapshot) -> None:
        """Remove a snapshot's protection and keep its place in publish order."""
        self._entries = [
            attrs.evolve(entry, protected=False) if entry is snapshot else entry
            for entry in self._entries
        ]

    def drop(self, snapshot: Snapshot) -> None:
        """Drop a snapshot; an absent snapshot is ignored."""
        self._entries = [entry for entry in self._entries if entry is not snapshot]

    def clear(self) -> None:
        """Drop all snapshots."""
        self._entries = []

    def deepest_boundary(self, hashes: Sequence[BlockHash]) -> int:
        """Return the deepest boundary of a chain with a snapshot, in blocks; 0 without one.

        Args:
            hashes: A chain, first block first.
        """
        kept = (entry.num_blocks for entry in self._entries if entry.lies_on(hashes))
        return max(kept, default=0)
