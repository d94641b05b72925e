"""Which boundaries get a snapshot, and which snapshots are kept. Pure rules.

Two regimes. With a cold tier a prefill publishes a *ladder* of snapshots, since the chain
on disk lags behind the prompt and only a shallow rung may be within its reach; then shallow
rungs are worth keeping. Without one it publishes a single snapshot, and the caps and the
order are those from before there was a ladder: which snapshot survives decides how a later
request builds its state, and so, by rounding, its tokens.
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
"""Snapshots of one owner: a whole ladder."""
SNAPSHOT_LIMIT = 5
"""Snapshots of all owners: a root session and four subagents."""
PRE_LADDER_LIMIT = 2
"""Snapshots of one owner where prefills publish one each."""


class VictimOrder(enum.Enum):
    """Which of the redundant snapshots goes first.

    Attributes:
        PRE_LADDER: The first in publish order that is an ancestor of another of its owner.
        LADDER: One whose owner is not publishing, and then the rung that is closest below
            the next one, measured as the ratio of their lengths.
    """

    PRE_LADDER = "pre-ladder"
    LADDER = "ladder"


@attrs.frozen
class Retention:
    """How many snapshots are kept, and which.

    Attributes:
        max_snapshots: Of all owners.
        max_per_owner: Of one owner.
        order: Which go first.
        root: Owner whose last snapshot goes last of all; None if nobody named one.
        max_bytes: Of all states; None means no bound.
    """

    max_snapshots: int
    max_per_owner: int
    order: VictimOrder
    root: str | None = None
    max_bytes: int | None = None


def gdn_prefix_checkpoint_limit() -> int:
    """Return how many snapshots there may be: a fleet of agents and its root must fit."""
    return SNAPSHOT_LIMIT


def retention(
    *, want_ladder: bool, root: str | None = None, max_bytes: int | None = None
) -> Retention:
    """Return the rules of a request.

    Without a named root there is no budget beside that of one owner.

    Args:
        want_ladder: Whether a cold tier wants ladders.
        root: Owner of the root session, if it was named.
        max_bytes: Most that all states may take.
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
    """Return the boundaries of a prefill that get a snapshot, the shallowest first.

    The deepest is the last full block strictly before the prompt's end; each other one is a
    quarter of the one above it, in whole blocks.

    Args:
        num_tokens: Tokens of the prompt.
        cached: Tokens that are not computed; boundaries up to there are not passed again.
        block_size: Tokens of a block.
        want_ladder: False for the deepest boundary alone.
    """
    rungs: list[int] = []
    boundary = (num_tokens - 1) // block_size * block_size
    while boundary > cached and len(rungs) < (LADDER_RUNGS if want_ladder else 1):
        rungs.append(boundary)
        boundary = boundary // LADDER_RATIO // block_size * block_size
    return rungs[::-1]


def publish(snapshots: Snapshots, snapshot: Snapshot, rules: Retention) -> list[Snapshot]:
    """Put a snapshot and drop what is too many then; return what was dropped.

    A ladder is published rung by rung, and pruned after each. A state that is larger than
    all may be together is dropped itself, at nobody else's cost.
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
    """Return the snapshot that goes next; None if all may stay.

    Args:
        entries: All snapshots in publish order.
        publisher: Owner of the newest one.
        rules: What is kept.
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
    # The newest rung's predecessor is always the most redundant one. Without deferral a
    # ladder that comes in rung by rung would eat itself down to its last.
    deferred = {publisher} if rules.order is VictimOrder.LADDER else set[str]()
    return (
        _most_redundant(entries, spare - deferred, rules.order)
        or _most_redundant(entries, spare, rules.order)
        or _first_to_empty(entries, publisher, rules.root)
    )


def _most_redundant(
    entries: Sequence[Snapshot], owners: Iterable[str], order: VictimOrder
) -> Snapshot | None:
    """Return the snapshot of `owners`, who keep another one, that is missed least.

    Where no snapshot is an ancestor of another, the oldest.
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
    """Return next length / own length, the next rung being its owner's; None for the last."""
    longer = [
        other.boundary
        for other in entries
        if other.owner == entry.owner and entry.is_ancestor_of(other)
    ]
    return min(longer) / entry.boundary if longer else None


def _first_to_empty(entries: Sequence[Snapshot], publisher: str, root: str | None) -> Snapshot:
    """Return whose last snapshot goes when there are more owners than places.

    The oldest one, but the root's and the publisher's only if there is no other.
    """
    return min(entries, key=lambda entry: (entry.owner == publisher, entry.owner == root))
