"""The cache's figures, as snapshots."""

from __future__ import annotations

import attrs


@attrs.frozen
class GroupStats:
    """One group's figures; `num_blocks = 1 + num_free + num_evictable + num_live`.

    Attributes:
        num_blocks: Blocks, the null block included.
        max_num_blocks: Blocks that growth may reach.
        num_free: Blocks that hold nothing.
        num_evictable: Blocks that only the prefix table knows.
        num_live: Blocks that sequences hold.
        evictions: Blocks evicted so far.
        growths: Times that the pool grew.
        growth_refusals: Times that memory did not allow it.
    """

    num_blocks: int
    max_num_blocks: int
    num_free: int
    num_evictable: int
    num_live: int
    evictions: int
    growths: int
    growth_refusals: int


@attrs.frozen
class CacheStats:
    """The figures of all groups.

    Attributes:
        groups: One a group.
        prefix_lookups: Sequences that were attached.
        prefix_hit_tokens: Tokens that they did not have to compute.
    """

    groups: tuple[GroupStats, ...]
    prefix_lookups: int
    prefix_hit_tokens: int
