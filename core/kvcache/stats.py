"""Figures of the cache."""

from __future__ import annotations

import attrs

from ..contract.layer_spec import AttentionSpec


def group_kind(spec: AttentionSpec | None) -> str:
    """Return the kind of a group in a word or two.

    Args:
        spec: The specification of the group's layers; None if all layers are recurrent. The
            blocks of such a group have no pool and only count tokens.
    """
    if spec is None:
        return "no keys"
    return "full" if spec.visible_tokens is None else f"window {spec.visible_tokens}"


@attrs.frozen
class GroupStats:
    """One group's figures; `num_blocks = 1 + num_free + num_evictable + num_live`.

    Attributes:
        kind: `full` for groups without a window, `window 64` for a window of 64 positions,
            `no keys` if all layers are recurrent.
        num_blocks: Blocks, the null block included.
        max_num_blocks: The most blocks that growth may reach.
        num_free: Blocks without references and without published content.
        num_evictable: Published blocks without references.
        num_live: Blocks that sequences hold.
        evictions: Blocks evicted so far.
        growths: How often the pool grew.
        growth_refusals: How often the memory budget refused growth.
    """

    kind: str
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
        groups: The figures of each group.
        prefix_lookups: Sequences that were attached.
        prefix_hit_tokens: Tokens of their prefix hits.
        prefix_unbacked_tokens: Tokens behind the hits whose blocks were published, but without
            the snapshot or the window at their end. They were computed again.
        snapshot_bytes: Bytes of all snapshots of recurrent states.
        snapshot_refusals: Snapshots that were not kept for lack of memory.
    """

    groups: tuple[GroupStats, ...]
    prefix_lookups: int
    prefix_hit_tokens: int
    prefix_unbacked_tokens: int
    snapshot_bytes: int = 0
    snapshot_refusals: int = 0


@attrs.define
class PrefixCounts:
    """Prefix lookups, counted while sequences are attached.

    Attributes:
        lookups: Sequences that were attached.
        hit_tokens: Tokens of their prefix hits.
        unbacked_tokens: Tokens behind the hits whose blocks were published, but without the
            snapshot or the window at their end.
    """

    lookups: int = 0
    hit_tokens: int = 0
    unbacked_tokens: int = 0

    def figures(self) -> tuple[int, int, int]:
        """Return lookups, tokens of hits, and tokens behind hits."""
        return self.lookups, self.hit_tokens, self.unbacked_tokens

    def count(self, hit_tokens: int, unbacked_tokens: int) -> None:
        """Count one lookup."""
        self.lookups += 1
        self.hit_tokens += hit_tokens
        self.unbacked_tokens += unbacked_tokens
