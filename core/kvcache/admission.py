"""The admission rule: whether every group has blocks for one more sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import sequence as cache_sequence
from .block_group import BlockGroup
from .prefix import PrefixHit


def num_lacking(
    group: BlockGroup, wanted: Iterable[tuple[cache_sequence.Sequence, int]]
) -> int:
    """Return how many blocks of a group the sequences lack.

    Args:
        group: The group.
        wanted: Sequences, each with the tokens that the sequence must have room for.
    """
    return sum(
        max(0, group.num_resident(num_tokens) - sequence.tables[group.index].num_held)
        for sequence, num_tokens in wanted
    )


def admits(
    groups: Sequence[BlockGroup],
    hit: PrefixHit,
    num_tokens: int,
    wanted: Sequence[tuple[cache_sequence.Sequence, int]],
    watermark: float,
) -> bool:
    """Return whether every group has the blocks that one more sequence needs.

    Args:
        groups: All groups.
        hit: The prefix hit of the sequence.
        num_tokens: Tokens that the sequence must have room for, the hit included.
        wanted: Sequences that come first, each with the tokens that it must have room for.
        watermark: Fraction of all blocks that must stay available.
    """
    return all(
        group.num_missing(blocks, num_tokens) + num_lacking(group, wanted)
        <= group.available_beside(blocks) - int(watermark * group.max_usable_blocks)
        for group, blocks in zip(groups, hit.blocks, strict=True)
    )
