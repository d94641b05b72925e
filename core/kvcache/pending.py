"""Prompt blocks that live sequences are computing, so that other requests can wait."""

from __future__ import annotations

from collections.abc import Iterable

from ..ids import BlockHash, SequenceId
from .block_identity import PrefixChain


class PendingBlocks:
    """Maps the hash of a pending block to the sequence that computes the block.

    The first claim of a hash wins.
    """

    def __init__(self) -> None:
        self._owners: dict[BlockHash, SequenceId] = {}

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._owners

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def owners(self) -> set[SequenceId]:
        """Sequences with pending blocks."""
        return set(self._owners.values())

    def claim(self, owner: SequenceId, hashes: Iterable[BlockHash]) -> None:
        """Mark blocks as computed by `owner`, except blocks with an earlier claim."""
        for block_hash in hashes:
            self._owners.setdefault(block_hash, owner)

    def withdraw(self, owner: SequenceId, hashes: Iterable[BlockHash]) -> bool:
        """Remove the claims of `owner` on these blocks; return whether there was a claim."""
        claimed = [h for h in hashes if self._owners.get(h) == owner]
        for block_hash in claimed:
            del self._owners[block_hash]
        return bool(claimed)

    def awaited(self, chain: PrefixChain, held: int, limit: int) -> int:
        """Return how many leading blocks of a chain are published or pending.

        Args:
            chain: A prompt's full blocks, hashed.
            held: Leading blocks that are published.
            limit: Most blocks to count.
        """
        while held < limit and chain.hashes[held] in self:
            held += 1
        return held
