"""A prefix that a new sequence can begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from .block import Block
from .block_identity import PrefixChain
from .manager import Finder, Found, find_agreed


@attrs.frozen(eq=False)
class PrefixHit:
    """The longest prefix that every kind of group can continue from.

    Attributes:
        length: Tokens, a multiple of the block size and less than the sequence has.
        blocks: Per group its blocks, first block first; the null block where a window has
            moved on. No reference is held.
        awaited: Tokens, at least `length`: so much will be held once the live sequences that
            are computing those blocks have published them.
        unbacked: Tokens behind it whose blocks are held, but not the state or the window at
            their end.
        found: The answer of each manager, in the coordinator's order.
    """

    length: int
    blocks: tuple[list[Block], ...]
    awaited: int
    unbacked: int = 0
    found: tuple[Found, ...] = ()


def find_hit(
    finders: Sequence[Finder],
    num_groups: int,
    chain: PrefixChain,
    limit: int,
    awaited: Callable[[PrefixChain, int, int], int],
) -> PrefixHit:
    """Return the longest prefix that every finder can continue from.

    Args:
        finders: The managers; the blocks of the first one say how long a prefix is.
        num_groups: Attention groups.
        chain: The prompt's full blocks, hashed.
        limit: At most this many blocks.
        awaited: `(chain, held, limit)` -> blocks that will be held soon, at least `held`.
    """
    size, longest = chain.block_size, finders[0].find(chain, limit).num_blocks
    found = find_agreed(finders, chain, longest)
    held = found[0].num_blocks
    entries = {i: blocks for answer in found for i, blocks in answer.blocks.items()}
    return PrefixHit(
        length=held * size,
        blocks=tuple(entries[group] for group in range(num_groups)),
        awaited=awaited(chain, held, limit) * size,
        unbacked=(longest - held) * size,
        found=found,
    )
