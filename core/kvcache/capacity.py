"""How much the groups of a cache hold, and whether one more sequence fits."""

from __future__ import annotations

from collections import abc

from .admission import admits, num_lacking
from .block_group import BlockGroup
from .prefix import PrefixHit
from .sequence import Sequence

UNBOUNDED_TOKENS = 2**31 - 1
"""More than any context."""


class Capacity:
    """The figures of all groups together.

    Attributes:
        groups: The attention groups, in the layout's order.
    """

    def __init__(self, groups: tuple[BlockGroup, ...], primary: int) -> None:
        """Watch over groups.

        Args:
            groups: The groups.
            primary: Index of the group whose blocks say how long a prefix is.
        """
        self.groups = groups
        self._primary = groups[primary]
        self._counted = [g for g in groups if g.visible_tokens is None] or groups

    @property
    def max_usable_blocks(self) -> int:
        """Blocks that sequences may ever hold together, growth included.

        Of each group that keeps every block, if there is one.
        """
        return min(group.max_usable_blocks for group in self._counted)

    @property
    def max_tokens(self) -> int:
        """The longest sequence that every group's pool holds, growth included."""
        bounds = [group.max_tokens for group in self.groups]
        return min((b for b in bounds if b is not None), default=UNBOUNDED_TOKENS)

    @property
    def max_concurrent_sequences(self) -> int:
        """Sequences that can hold a first block each in every group, growth included."""
        return min(group.max_usable_blocks for group in self.groups)

    @property
    def num_available(self) -> int:
        """Blocks that each of these groups could hand out: free, evictable or growable."""
        return min(group.num_available for group in self._counted)

    def num_reserved(self, wanted: abc.Iterable[tuple[Sequence, int]]) -> int:
        """Return the blocks of the primary group that sequences lack for so many tokens."""
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
