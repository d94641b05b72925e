"""Whom a step takes blocks from."""

from __future__ import annotations

from collections.abc import Sequence

from .request import Request


def choose_victim(running: Sequence[Request]) -> Request:
    """Return the newest arrival that has got something done since it was last a victim.

    The oldest request is thus never taken while another one runs, so it finishes, and so does
    each after it. A resumed request is passed over until it has made the progress that
    `protected_until` asks for, unless all are protected: then the newest is taken.

    Args:
        running: Running requests in arrival order, at least one.
    """
    for request in reversed(running[1:]):
        if len(request.tokens) >= request.protected_until:
            return request
    return running[-1]
