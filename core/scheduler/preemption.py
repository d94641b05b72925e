"""Whom a step takes blocks from."""

from __future__ import annotations

from collections.abc import Sequence

from .turn import Turn


def choose_victim(running: Sequence[Turn]) -> Turn:
    """Return the newest arrival that has got something done since it was last a victim.

    The oldest turn is thus never taken while another one runs, so it finishes, and so does
    each after it. A resumed turn is passed over until it has made the progress that
    `protected_until` asks for, unless all are protected: then the newest is taken.

    Args:
        running: Running turns in arrival order, at least one.
    """
    for turn in reversed(running[1:]):
        if len(turn.tokens) >= turn.protected_until:
            return turn
    return running[-1]
