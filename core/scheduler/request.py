"""One request, as the scheduler sees it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..errors import RequestStateError
from ..ids import SHARED_DOMAIN, RequestId, SaltDomain


class RequestStatus(enum.Enum):
    """Where a request is."""

    WAITING = "waiting"
    WAITING_FOR_SSD = "waiting_for_ssd"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


MOVES: Mapping[RequestStatus, frozenset[RequestStatus]] = {
    RequestStatus.WAITING: frozenset(
        {RequestStatus.WAITING_FOR_SSD, RequestStatus.RUNNING, RequestStatus.FINISHED}
    ),
    RequestStatus.WAITING_FOR_SSD: frozenset(
        {RequestStatus.RUNNING, RequestStatus.PREEMPTED, RequestStatus.FINISHED}
    ),
    RequestStatus.RUNNING: frozenset({RequestStatus.PREEMPTED, RequestStatus.FINISHED}),
    RequestStatus.PREEMPTED: frozenset(
        {RequestStatus.WAITING_FOR_SSD, RequestStatus.RUNNING, RequestStatus.FINISHED}
    ),
    RequestStatus.FINISHED: frozenset(),
}
"""Status -> statuses that may follow it."""


@attrs.define(eq=False)
class Request:
    """A prompt and what has been generated for it.

    A request's tokens are known (read by the host) or in flight (sampled by a step whose result
    the host has not read). Its sequence says how many were handed to steps:

        [0, frontier)          computed and committed
        [frontier, cursor)     handed to a step that is not settled
        [cursor, len(tokens))  known, still to be computed; empty while a token is in flight

    Attributes:
        id: Rises in arrival order.
        tokens: Known tokens: the prompt, then what was generated.
        num_prompt_tokens: How many of them are the prompt.
        max_tokens: Tokens to generate at most, clamped to context and cache.
        salt: Sharing domain.
        owner: The conversation that it belongs to; "" where nobody said so.
        sequence: The cache side; None before admission and after release.
        grid_origin: Position from which the grid of prefill breaks counts.
        rungs: Positions at which its prefill stops besides, for a snapshot of its state.
        num_in_flight: Sampled tokens that have not been read: 0 or 1 when a step is planned,
            2 for the moment between its planning and the settling of the step before.
        cached_tokens: Prompt tokens found in the cache at first admission, in memory or on
            disk; None before it.
        restored_tokens: Those of them that came from disk.
        held_tokens: Tokens whose blocks were in memory then, with or without the state at
            their end.
        miss: What the cold tier said about the rest of the prefix at first admission.
        preemptions: How often its blocks were taken.
        spilled: Whether they were written to disk before, the last time.
        protected_until: It is not chosen as a victim before it has this many known tokens.
    """

    id: RequestId
    tokens: list[int]
    max_tokens: int
    salt: SaltDomain = SHARED_DOMAIN
    owner: str = ""
    num_prompt_tokens: int = attrs.field(init=False)
    status: RequestStatus = attrs.field(init=False, default=RequestStatus.WAITING)
    sequence: Any = attrs.field(init=False, default=None)
    grid_origin: int = attrs.field(init=False, default=0)
    rungs: Sequence[int] = attrs.field(init=False, default=())
    num_in_flight: int = attrs.field(init=False, default=0)
    cached_tokens: int | None = attrs.field(init=False, default=None)
    restored_tokens: int = attrs.field(init=False, default=0)
    held_tokens: int = attrs.field(init=False, default=0)
    miss: str | None = attrs.field(init=False, default=None)
    preemptions: int = attrs.field(init=False, default=0)
    spilled: bool = attrs.field(init=False, default=False)
    protected_until: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    def move(self, status: RequestStatus) -> None:
        """Change the status along `MOVES`.

        Raises:
            RequestStateError: There is no such edge.
        """
        if status not in MOVES[self.status]:
            raise RequestStateError(
                f"request {self.id} cannot go from {self.status.value} to {status.value}"
            )
        self.status = status

    @property
    def num_outputs(self) -> int:
        """Generated tokens that the host knows."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        """Known tokens that no step has been given yet."""
        return len(self.tokens) - self.sequence.cursor

    @property
    def wants_decode(self) -> bool:
        """Whether it runs and its next step is one token, known or in flight."""
        running = self.status is RequestStatus.RUNNING
        return running and (self.num_in_flight > 0 or self.num_uncomputed == 1)

    @property
    def wants_prefill(self) -> bool:
        """Whether it runs and its next step is a slice of several known tokens."""
        running = self.status is RequestStatus.RUNNING
        return running and self.num_in_flight == 0 and self.num_uncomputed > 1

    @property
    def may_sample(self) -> bool:
        """Whether another token may be sampled, the one in flight counted."""
        return self.num_outputs + self.num_in_flight < self.max_tokens
