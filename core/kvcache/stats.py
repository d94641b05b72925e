"""The cache's figures, as snapshots."""

from __future__ import annotations

import attrs

from ..contract.layer_spec import AttentionSpec


def group_kind(spec: AttentionSpec | None) -> str:
    """Return what the layers of a group keep, in a word or two.

    Args:
        spec: Of the group; None for the group of a model that has recurrent layers alone,
            whose blocks have no pool and only count tokens.
    """
    if spec is None:
        return "no keys"
    return "full" if spec.visible_tokens is None else f"window {spec.visible_tokens}"


@attrs.frozen
class GroupStats:
    """One group's figures; `num_blocks = 1 + num_free + num_evictable + num_live`.

    Attributes:
        kind: What its layers keep: `full` for every position, `window 64` for the newest 64,
            `no keys` if all layers are recurrent.
        num_blocks: Blocks, the null block included.
        max_num_blocks: Blocks that growth may reach.
        num_free: Blocks that hold nothing.
        num_evictable: Blocks that only the prefix table knows.
        num_live: Blocks that sequences hold.
        evictions: Blocks evicted so far.
        growths: Times that the pool grew.
        growth_refusals: Times that memory did not allow it.
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
        groups: One a group.
        prefix_lookups: Sequences that were attached.
        prefix_hit_tokens: Tokens that they did not have to compute.
        prefix_unbacked_tokens: Tokens behind those whose keys and values were held and had to
            be computed again, since the state or the window at their end was not.
        snapshot_bytes: Bytes of the recurrent states that are kept for later requests.
        snapshot_refusals: States that were not kept, since memory had no room for one.
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
        hit_tokens: Tokens of their hits.
        unbacked_tokens: Tokens behind the hits whose blocks were held, without the state or
            the window at their end.
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
