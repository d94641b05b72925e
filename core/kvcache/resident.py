"""Blocks of a group with a window that one sequence holds, however long it is."""

from __future__ import annotations

import attrs

from ..contract.layer_spec import AttentionSpec
from .block_table import blocks_for


@attrs.frozen
class Resident:
    """Blocks of a group with a window that one sequence holds, however long it is.

    A window, the tokens that steps compute at once, and one block since neither begins at
    a block's first token.

    Attributes:
        most: With the slice of a prefill that is being computed and the next one.
        least: With one of them: blocks that the next one can do without are given back
            before they could be published.
    """

    most: int
    least: int

    @classmethod
    def of(cls, spec: AttentionSpec | None, block_size: int, max_slice: int) -> Resident | None:
        """Return what a group needs; None if that grows with the sequence.

        Args:
            spec: What the group's layers keep.
            block_size: Tokens of a block.
            max_slice: Tokens of one sequence that a step computes, at most.
        """
        if spec is None or spec.visible_tokens is None:
            return None
        most, least = (
            blocks_for(spec.visible_tokens - 1 + tokens, block_size) + 1
            for tokens in (2 * max_slice, max_slice)
        )
        return cls(most, least)


def largest_slice(spec: AttentionSpec, num_blocks: int, block_size: int) -> int | None:
    """Return the tokens that a step may compute of a sequence alone in its pool, or None."""
    if spec.visible_tokens is None:
        return None
    usable = num_blocks - 1  # and one that is not used in full, as neither end is aligned
    tokens = (usable - 1) * block_size - (spec.visible_tokens - 1)
    return max(block_size, tokens // block_size * block_size)
