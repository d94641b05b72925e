"""Acceptance of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T", bound=int | None)


def accepted(drafts: Sequence[int], drawn: Sequence[T]) -> list[T]:
    """Return the tokens of a verified row. Plain decoding would draw the same tokens.

    The target's token is drawn at every position with the request's own noise. A draw is kept
    while all drafts before it equal the draws at their positions.

    Args:
        drafts: `k` proposals.
        drawn: The `k + 1` draws after 0, 1, ... k drafts; or empty. None replaces the draw
            of a position whose logits are not finite.

    Returns:
        1 to `k + 1` tokens; empty if `drawn` is empty.
    """
    for index, draft in enumerate(drafts):
        if draft != drawn[index]:
            return list(drawn[: index + 1])
    return list(drawn)
