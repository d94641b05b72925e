"""Capacity of all groups of a cache together."""

from __future__ import annotations

from collections import abc

from .admission import admits, num_lacking
from .block_group import BlockGroup
from .prefix import PrefixHit
from .sequence import Sequence

UNBOUNDED_TOKENS = 2**31 - 1
"""Bound of caches without a bound; longer than every context."""


class Capacity:
    """Capacity figures of all groups together, and the admission rule.

    Attributes:
        groups: The attention groups, in the layout's order.
    """

    def __init__(self, groups: tuple[BlockGroup, ...], primary: int) -> None:
        """Make the figures of groups.

        Args:
            groups: The groups, in the layout's order.
            primary: Index of the group that defines prefix lengths.
        """
        self.groups = groups
        self._primary = groups[primary]
        self._counted = [g for g in groups if g.visible_tokens is None] or groups

    @property
    def max_usable_blocks(self) -> int:
        """Blocks that all sequences together can hold at most, growth included.

        The minimum over the groups without a window; over all groups if all have windows.
        """
        return min(group.max_usable_blocks for group in self._counted)

    @property
    def max_tokens(self) -> int:
        """Length in tokens of the longest sequence that fits every pool, growth included."""
        bounds = [group.max_tokens for group in self.groups]
        return min((b for b in bounds if b is not None), default=UNBOUNDED_TOKENS)

    @property
    def max_concurrent_sequences(self) -> int:
        """Sequences that can each hold one block in every group, growth included."""
        return min(group.max_usable_blocks for group in self.groups)

    @property
    def num_available(self) -> int:
        """Free, evictable or growable blocks: the minimum over the same groups."""
        return min(group.num_available for group in self._counted)

    def num_reserved(self, wanted: abc.Iterable[tuple[Sequence, int]]) -> int:
        """Return how many blocks of the primary group sequences lack; see `num_lacking`."""
        return num_lacking(self._primary, wanted)

    def admits(
        self,
        hit: PrefixHit,
        num_tokens: int,
        wanted: abc.Iterable[tuple[Sequence, int]],
        watermark: float,
    ) -> bool:
        """Return whether there is room for one more sequence; see `admission.admits`."""
        return admits(self.groups, hit, num_tokens, list(wanted), watermark)
