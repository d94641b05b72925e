"""Which drafts of a request are its next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T", bound=int | None)


def accepted(drafts: Sequence[int], drawn: Sequence[T]) -> list[T]:
    """Return the tokens that verification yields: those that plain decoding would have drawn.

    The target's token is drawn at every position with the request's own noise. Each draft
    that equals the draw confirms the next position; the first draw that differs, or the one
    behind the last draft, is the last token.

    Args:
        drafts: `k` proposals.
        drawn: The `k + 1` tokens that were drawn after 0, 1, ... k of them; or none. None in
            the place of a token that could not be drawn: it equals no draft.

    Returns:
        1 to `k + 1` tokens; none if nothing was drawn.
    """
    for index, draft in enumerate(drafts):
        if draft != drawn[index]:
            return list(drawn[: index + 1])
    return list(drawn)
