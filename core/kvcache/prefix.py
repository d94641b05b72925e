"""Prefix hits."""

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
        length: Tokens of the hit, a multiple of the block size and less than the prompt.
        blocks: The blocks of each group, first block first. Entries before a window are the
            null block. No reference is held.
        awaited: Length in tokens, at least `length`, that the hit will have after live
            sequences publish their pending blocks or snapshots.
        unbacked: Tokens behind the hit whose blocks are published, but without the snapshot
            or the window at their end.
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
        finders: The managers. The blocks of the first one define prefix lengths.
        num_groups: Number of attention groups.
        chain: The prompt's full blocks, hashed.
        limit: Most blocks of the hit.
        awaited: `(chain, held, limit)` -> leading blocks that are published or pending.
    """
    size, first = chain.block_size, finders[0].find(chain, limit)
    longest = first.num_blocks
    # a model with one kind of group needs no second search
    found = (first,) if len(finders) == 1 else find_agreed(finders, chain, longest)
    held = found[0].num_blocks
    entries = {i: blocks for answer in found for i, blocks in answer.blocks.items()}
    return PrefixHit(
        length=held * size,
        blocks=tuple(entries[group] for group in range(num_groups)),
        awaited=awaited(chain, held, limit) * size,
        unbacked=(longest - held) * size,
        found=found,
    )
