"""Rules for snapshots: at which boundaries they are taken, and which ones are kept.

With a cold tier, a prefill publishes snapshots at several boundaries (a *ladder*). The chain
on disk is often shorter than the prompt, so only a shallow boundary may be usable there.
Without a cold tier, a prefill publishes one snapshot, and the limits and the victim order of
earlier versions apply. The rules are part of the results: a request that starts from another
snapshot computes its state with other rounding, and may sample other tokens.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from .snapshots import Snapshot, Snapshots

LADDER_RUNGS = 4
LADDER_RATIO = 4
SNAPSHOTS_PER_OWNER = LADDER_RUNGS
"""Most snapshots of one owner: a whole ladder."""
SNAPSHOT_LIMIT = 5
"""Most snapshots of all owners: a root session and four subagents."""
PRE_LADDER_LIMIT = 2
"""Most snapshots of one owner if a prefill publishes one snapshot."""


class VictimOrder(enum.Enum):
    """The order in which redundant snapshots are dropped.

    Attributes:
        PRE_LADDER: The oldest snapshot that is an ancestor of another one of its owner.
        LADDER: Owners that are not publishing come first. Among their snapshots, the one
            with the smallest ratio of the next deeper boundary to its own boundary.
    """

    PRE_LADDER = "pre-ladder"
    LADDER = "ladder"


@attrs.frozen
class Retention:
    """Limits on snapshots, and the order of victims.

    Attributes:
        max_snapshots: Most snapshots of all owners.
        max_per_owner: Most snapshots of one owner.
        order: The order of victims.
        root: The owner whose last snapshot is dropped last; None without a root session.
        max_bytes: Most bytes of all states; None: no limit.
    """

    max_snapshots: int
    max_per_owner: int
    order: VictimOrder
    root: str | None = None
    max_bytes: int | None = None


def gdn_prefix_checkpoint_limit() -> int:
    """Return the limit on snapshots of all owners: a root session and its agents must fit."""
    return SNAPSHOT_LIMIT


def retention(
    *, want_ladder: bool, root: str | None = None, max_bytes: int | None = None
) -> Retention:
    """Return the rules of a model.

    Without a root session, all owners together share the limit of one owner.

    Args:
        want_ladder: Whether a cold tier wants ladders.
        root: Owner of the root session; None without one.
        max_bytes: Most bytes of all states; None: no limit.
    """
    per_owner = SNAPSHOTS_PER_OWNER if want_ladder else PRE_LADDER_LIMIT
    return Retention(
        max_snapshots=per_owner if root is None else SNAPSHOT_LIMIT,
        max_per_owner=per_owner,
        order=VictimOrder.LADDER if want_ladder else VictimOrder.PRE_LADDER,
        root=root,
        max_bytes=max_bytes,
    )


def snapshot_ladder(
    num_tokens: int, cached: int, block_size: int, *, want_ladder: bool = True
) -> list[int]:
    """Return the boundaries of a prefill that get a snapshot, in ascending order.

    The deepest boundary is the last block boundary strictly before the prompt's end. Each
    other boundary is a quarter of the next deeper one, rounded down to whole blocks.

    Args:
        num_tokens: Tokens of the prompt.
        cached: Tokens of the prefix hit. Only deeper boundaries are returned.
        block_size: Tokens of a block.
        want_ladder: False for the deepest boundary alone.
    """
    boundaries: list[int] = []
    boundary = (num_tokens - 1) // block_size * block_size
    while boundary > cached and len(boundaries) < (LADDER_RUNGS if want_ladder else 1):
        boundaries.append(boundary)
        boundary = boundary // LADDER_RATIO // block_size * block_size
    return boundaries[::-1]


def publish(snapshots: Snapshots, snapshot: Snapshot, rules: Retention) -> list[Snapshot]:
    """Add a snapshot, then drop snapshots beyond the limits; return the dropped snapshots.

    A ladder is published one boundary at a time, and pruned after each. A state that is
    larger than the byte limit is dropped at once, and the other snapshots stay.
    """
    if rules.max_bytes is not None and snapshot.num_bytes > rules.max_bytes:
        return [snapshot]
    snapshots.put(snapshot)
    dropped: list[Snapshot] = []
    while victim := choose_victim(snapshots.entries, snapshot.owner, rules):
        snapshots.drop(victim)
        dropped.append(victim)
    return dropped


def choose_victim(
    entries: Sequence[Snapshot], publisher: str, rules: Retention
) -> Snapshot | None:
    """Return the next snapshot to drop; None if the limits hold.

    Args:
        entries: All snapshots in publish order.
        publisher: Owner of the newest snapshot.
        rules: The limits and the order of victims.
    """
    counts = Counter(entry.owner for entry in entries)
    for owner, count in counts.items():
        if count > rules.max_per_owner:
            return _most_redundant(entries, {owner}, rules.order)
    num_bytes = sum(entry.num_bytes for entry in entries)
    too_large = rules.max_bytes is not None and num_bytes > rules.max_bytes
    if len(entries) <= rules.max_snapshots and not too_large:
        return None
    spare = {owner for owner, count in counts.items() if count > 1}
    # The snapshot below the newest one is always the most redundant. Without deferral, each
    # new boundary of a ladder would drop the boundary before it.
    deferred = {publisher} if rules.order is VictimOrder.LADDER else set[str]()
    return (
        _most_redundant(entries, spare - deferred, rules.order)
        or _most_redundant(entries, spare, rules.order)
        or _first_to_empty(entries, publisher, rules.root)
    )


def _most_redundant(
    entries: Sequence[Snapshot], owners: Iterable[str], order: VictimOrder
) -> Snapshot | None:
    """Return the most redundant snapshot of owners that have at least two.

    If no snapshot is an ancestor of another, the oldest snapshot is returned.
    """
    candidates = [entry for entry in entries if entry.owner in owners]
    ratios = [(entry, _next_ratio(entry, candidates)) for entry in candidates]
    ancestors = [(entry, ratio) for entry, ratio in ratios if ratio is not None]
    if not ancestors:
        return candidates[0] if candidates else None
    if order is VictimOrder.PRE_LADDER:
        return ancestors[0][0]
    return min(ancestors, key=lambda pair: pair[1])[0]


def _next_ratio(entry: Snapshot, entries: Sequence[Snapshot]) -> float | None:
    """Return next deeper boundary of the owner / own boundary; None for the deepest."""
    longer = [
        other.boundary
        for other in entries
        if other.owner == entry.owner and entry.is_ancestor_of(other)
    ]
    return min(longer) / entry.boundary if longer else None


def _first_to_empty(entries: Sequence[Snapshot], publisher: str, root: str | None) -> Snapshot:
    """Return the victim when every owner has one snapshot.

    The oldest snapshot is the victim. Snapshots of the root session, then of the publisher,
    are taken only if there is no other.
    """
    return min(entries, key=lambda entry: (entry.owner == publisher, entry.owner == root))
