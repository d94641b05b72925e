"""Prompt blocks that are being computed right now, so that a peer can wait for them."""

from __future__ import annotations

from collections.abc import Iterable

from ..ids import BlockHash, SequenceId
from .block_identity import PrefixChain


class PendingBlocks:
    """Block hash -> the live sequence that is about to publish it; the first claim holds."""

    def __init__(self) -> None:
        self._owners: dict[BlockHash, SequenceId] = {}

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._owners

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def owners(self) -> set[SequenceId]:
        """Sequences that others may wait for."""
        return set(self._owners.values())

    def claim(self, owner: SequenceId, hashes: Iterable[BlockHash]) -> None:
        """Announce that `owner` computes these blocks; those claimed by others stay theirs."""
        for block_hash in hashes:
            self._owners.setdefault(block_hash, owner)

    def withdraw(self, owner: SequenceId, hashes: Iterable[BlockHash]) -> bool:
        """Strike off those of the blocks that `owner` has claimed; return if there were any."""
        claimed = [h for h in hashes if self._owners.get(h) == owner]
        for block_hash in claimed:
            del self._owners[block_hash]
        return bool(claimed)

    def awaited(self, chain: PrefixChain, held: int, limit: int) -> int:
        """Return how many of a chain's first `limit` blocks will be held soon.

        Args:
            chain: A prompt's full blocks, hashed.
            held: Blocks that are held already.
            limit: At most this many.
        """
        while held < limit and chain.hashes[held] in self:
            held += 1
        return held
