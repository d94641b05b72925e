"""Rules for pinned boundaries of windows: which ones are kept, and the order of victims.

A window can be used at every boundary whose blocks are still published. Blocks that a window
has moved past are evicted first, so the blocks of boundaries that a later prompt may need are
pinned.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .snapshots import Snapshot

PRE_LADDER_LIMIT = 2
"""Most pinned boundaries without a cold tier."""
ELEMENT_BYTES = 4
"""Bytes counted per element, independent of the cache dtype."""
MAX_ANCHOR_BYTES = 3 << 30
"""Most bytes of pinned boundaries with a cold tier."""


@attrs.frozen
class WindowRules:
    """Limits on pinned boundaries.

    Attributes:
        max_snapshots: Most pinned boundaries of all prompts.
        anchors: Boundaries that all prompts have in common, in tokens.
        max_bytes: Most bytes of all pinned boundaries; None: no limit.
    """

    max_snapshots: int = PRE_LADDER_LIMIT
    anchors: frozenset[int] = frozenset()
    max_bytes: int | None = None


def window_bytes(boundary: int, window: int, row_bytes: int) -> int:
    """Return the bytes of the window at a boundary. Early windows are shorter.

    Args:
        boundary: The boundary in tokens.
        window: Positions of the window.
        row_bytes: Bytes of one position in all layers, at `ELEMENT_BYTES` per element.
    """
    return min(boundary, window) * row_bytes


def rules_with_anchors(anchors: Sequence[int], window: int, row_bytes: int) -> WindowRules:
    """Return the rules of a model with a cold tier.

    Anchors are admitted in ascending order while `MAX_ANCHOR_BYTES` holds them beside
    `PRE_LADDER_LIMIT` whole windows.

    Args:
        anchors: Boundaries in tokens, ascending.
        window: Positions of the window.
        row_bytes: As in `window_bytes`.
    """
    spent = PRE_LADDER_LIMIT * window * row_bytes
    admitted: list[int] = []
    for boundary in anchors:
        spent += window_bytes(boundary, window, row_bytes)
        if spent > MAX_ANCHOR_BYTES:
            break
        admitted.append(boundary)
    return WindowRules(PRE_LADDER_LIMIT + len(admitted), frozenset(admitted), MAX_ANCHOR_BYTES)


def choose_window_victim(entries: Sequence[Snapshot], rules: WindowRules) -> Snapshot | None:
    """Return the next pinned boundary to drop; None if the limits hold.

    The victims, in this order: the oldest entry that is not an anchor; the oldest anchor that
    is not an ancestor of the newest entry; the deepest anchor; the newest entry. Protected
    entries are never victims unless newest.

    Args:
        entries: All pinned boundaries in publish order.
        rules: The limits.
    """
    num_bytes = sum(entry.num_bytes for entry in entries)
    too_large = rules.max_bytes is not None and num_bytes > rules.max_bytes
    if len(entries) <= rules.max_snapshots and not too_large:
        return None
    *older, newest = entries
    older = [entry for entry in older if not entry.protected]
    anchors = [entry for entry in older if entry.boundary in rules.anchors]
    others = [entry for entry in older if entry.boundary not in rules.anchors]
    strangers = [entry for entry in anchors if not entry.is_ancestor_of(newest)]
    for candidates in (others, strangers):
        if candidates:
            return candidates[0]
    return max(anchors, key=lambda entry: entry.boundary, default=newest)
