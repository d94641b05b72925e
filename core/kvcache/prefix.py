"""The search for the longest prefix that all groups share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from ..ids import BlockHash
from .block import Block
from .block_identity import PrefixChain
from .group_manager import GroupManager

if TYPE_CHECKING:
    from .state_keeper import KeptState


@attrs.frozen(eq=False)
class PrefixHit:
    """The longest prefix that every group holds.

    Attributes:
        length: Tokens, a multiple of the block size and less than the sequence has.
        blocks: Per group its blocks, first block first; the null block where a window has
            moved on. No reference is held.
        awaited: Tokens, at least `length`: so much will be held once the live sequences that
            are computing those blocks have published them.
        state: State of recurrent layers behind it; None without such layers.
        unbacked: Tokens behind it whose blocks are held, but not the state or the window at
            their end.
    """

    length: int
    blocks: tuple[list[Block], ...]
    awaited: int
    state: Any = None
    unbacked: int = 0


class StateBoundaries(Protocol):
    """Keeps states of recurrent layers at boundaries; see `StateKeeper`."""

    def deepest_boundary(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks end at the deepest boundary with a state; or 0.

        Args:
            hashes: A chain, first block first.
        """
        ...

    def state_at(self, block_hash: BlockHash) -> Any:
        """Return the state behind the prefix that ends with that block; None without one."""
        ...

    def keep(self, owner: str, chain: PrefixChain, state: KeptState) -> None:
        """Publish a state of a chain whose blocks up to there are published."""
        ...

    def rungs(self, num_tokens: int, cached: int) -> list[int]:
        """Return the boundaries at which a prefill has to stop for a snapshot."""
        ...

    def clear(self) -> None:
        """Forget every state."""
        ...


def find_longest_prefix(
    groups: Sequence[GroupManager], chain: PrefixChain, limit: int
) -> tuple[list[Block], ...]:
    """Return, per group, the blocks of the longest prefix that every group still holds.

    A prefix is published in all groups at once, so its boundary is valid where each group has
    what it needs to go on from there. Changes nothing and takes no reference.

    All groups are asked for the longest prefix that they hold up to a limit; where they
    differ, the shortest answer is the next limit, and all are asked once more. Every round
    but the last lowers it by at least one block, so there are finitely many.

    Args:
        groups: All groups.
        chain: The prompt's full blocks, hashed.
        limit: At most this many blocks.

    Source: the fixed point of vLLM's hybrid coordinator.
    """
    while True:
        found = tuple(group.find_prefix(chain, limit) for group in groups)
        lengths = {len(blocks) for blocks in found}
        if len(lengths) == 1:
            return found
        limit = min(lengths)
