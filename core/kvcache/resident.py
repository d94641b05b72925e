"""Bounds on the blocks that one sequence holds in a group with a window."""

from __future__ import annotations

import attrs

from ..contract.layer_spec import AttentionSpec
from .block_table import blocks_for


@attrs.frozen
class Resident:
    """Bounds on the blocks that one sequence holds in a group with a window.

    The blocks hold a window and the tokens of steps. One more block is needed because the
    window need not begin at the first token of a block.

    Attributes:
        most: Blocks for the window, the slice in flight and the next slice.
        least: Blocks for the window and one slice. The next slice then takes blocks behind
            the window before they are published.
    """

    most: int
    least: int

    @classmethod
    def of(cls, spec: AttentionSpec | None, block_size: int, max_slice: int) -> Resident | None:
        """Return the bounds of a group; None if the blocks grow with the sequence.

        Args:
            spec: The specification of the group's layers.
            block_size: Tokens of a block.
            max_slice: Most tokens of one sequence that a step computes.
        """
        if spec is None or spec.visible_tokens is None:
            return None
        most, least = (
            blocks_for(spec.visible_tokens - 1 + tokens, block_size) + 1
            for tokens in (2 * max_slice, max_slice)
        )
        return cls(most, least)


def largest_slice(spec: AttentionSpec, num_blocks: int, block_size: int) -> int | None:
    """Return the longest slice of a sequence alone in its pool; None without a window."""
    if spec.visible_tokens is None:
        return None
    usable = num_blocks - 1  # without the null block; one more block is lost to alignment
    tokens = (usable - 1) * block_size - (spec.visible_tokens - 1)
    return max(block_size, tokens // block_size * block_size)
