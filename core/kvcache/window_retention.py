"""Which boundaries of a window are worth keeping, and which of them go first. Pure rules.

A window is no sum: it can be cut out wherever its blocks still are. But blocks that it has
moved past go first, so boundaries that a later prompt may end at are held on to.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from .snapshots import Snapshot

PRE_LADDER_LIMIT = 2
"""Boundaries that are held on to without a cold tier."""
ELEMENT_BYTES = 4
"""What an element counts, whatever it is stored as."""
MAX_ANCHOR_BYTES = 3 << 30
"""What boundaries may take together with a cold tier."""


@attrs.frozen
class WindowRules:
    """How many boundaries are held on to, and which.

    Attributes:
        max_snapshots: Of all prompts together.
        anchors: Boundaries that all prompts share, in tokens.
        max_bytes: Of all of them; None means that only their number counts.
    """

    max_snapshots: int = PRE_LADDER_LIMIT
    anchors: frozenset[int] = frozenset()
    max_bytes: int | None = None


def window_bytes(boundary: int, window: int, row_bytes: int) -> int:
    """Return what a boundary costs: not a window, but what the window holds there.

    Args:
        boundary: Tokens.
        window: Positions of the window.
        row_bytes: Of one position in all layers, `ELEMENT_BYTES` an element.
    """
    return min(boundary, window) * row_bytes


def rules_with_anchors(anchors: Sequence[int], window: int, row_bytes: int) -> WindowRules:
    """Return the rules of a model with a cold tier.

    Anchors are admitted from the shallowest on while there is room for them beside the
    boundaries that are held on to without a cold tier.

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
    """Return the boundary that goes next; None if all may stay.

    Without anchors the oldest. With them: the oldest that is no anchor, the oldest anchor that
    the newest entry does not continue, the deepest anchor; the newest entry itself last of all.

    Args:
        entries: All of them in publish order.
        rules: What is kept.
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
