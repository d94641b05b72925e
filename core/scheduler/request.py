"""One request, as the scheduler sees it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..contract.prompt import ExtraKeys
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
    """A prompt and its answer so far: the one place that holds a request's tokens.

    Three cursors describe a request::

        [0, num_computed)                    handed to steps; the committed part is the
                                             sequence's frontier
        [0, num_known)                       tokens whose value exists: read by the host, or
                                             sampled by a step in flight
        [num_known, num_known + num_drafted) proposals that the next step verifies

    The next step computes `num_pending` known tokens, cut by the step's budget, and behind the
    last known token `num_drafted` proposals, as far as room is left over. Prefill, decode and
    verification are the same equation with different numbers.

    Attributes:
        id: Rises in arrival order.
        tokens: Tokens that the host knows: the prompt, then the answer.
        num_prompt_tokens: How many of them are the prompt.
        max_tokens: Tokens to generate at most, clamped to context and cache.
        salt: Sharing domain.
        extra_keys: Identity of the prompt's blocks beside tokens, one tuple a block.
        owner: The conversation of the request; "" where nobody said so.
        look_ahead: Whether a step may be planned on a token that the host has not read. A
            request whose drafts depend on its newest token waits; its neighbours do not.
        sequence: The cache side; None before admission and after release.
        grid_origin: Position from which the grid of prefill breaks counts.
        boundaries: Positions at which its prefill stops besides, for a snapshot of its state.
        drafts: Proposals for the tokens behind the known ones.
        num_in_flight: Sampled tokens that have not been read: 0 or 1 when a step is planned,
            2 for the moment between its planning and the settling of the step before.
        is_verifying: A step that verifies drafts is in flight: how many tokens it yields is
            not known, so that nothing can be planned before it is read.
        cached_tokens: Prompt tokens found in the cache at first admission, in memory or on
            disk; None before it.
        restored_tokens: Those of them that came from disk.
        held_tokens: Tokens whose blocks were in memory then, with or without the state at
            their end.
        miss: Why the cold tier did not have the rest of the prefix at first admission.
        preemptions: How often its blocks were taken.
        protected_until: It is not chosen as a victim before it has this many known tokens.
    """

    id: RequestId
    tokens: list[int]
    max_tokens: int
    salt: SaltDomain = SHARED_DOMAIN
    extra_keys: Sequence[ExtraKeys] = ()
    owner: str = ""
    look_ahead: bool = True
    num_prompt_tokens: int = attrs.field(init=False)
    status: RequestStatus = attrs.field(init=False, default=RequestStatus.WAITING)
    sequence: Any = attrs.field(init=False, default=None)
    grid_origin: int = attrs.field(init=False, default=0)
    boundaries: Sequence[int] = attrs.field(init=False, default=())
    drafts: tuple[int, ...] = attrs.field(init=False, default=())
    num_in_flight: int = attrs.field(init=False, default=0)
    is_verifying: bool = attrs.field(init=False, default=False)
    cached_tokens: int | None = attrs.field(init=False, default=None)
    restored_tokens: int = attrs.field(init=False, default=0)
    held_tokens: int = attrs.field(init=False, default=0)
    miss: str | None = attrs.field(init=False, default=None)
    preemptions: int = attrs.field(init=False, default=0)
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
    def num_computed(self) -> int:
        """Positions that were handed to steps."""
        return self.sequence.cursor

    @property
    def num_known(self) -> int:
        """Tokens whose value exists, on the host or on the device."""
        return len(self.tokens) + self.num_in_flight

    @property
    def num_drafted(self) -> int:
        """Proposals that can be verified: as many as further tokens are wanted."""
        return min(len(self.drafts), max(0, self.last_position - self.num_known))

    @property
    def last_position(self) -> int:
        """Positions that are ever computed; the last token of an answer is not."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def num_pending(self) -> int:
        """Known tokens of its next step, before the step's budget cuts them."""
        end = min(self.num_known, self.last_position)
        return max(end - self.num_computed, 0)

    @property
    def is_ready(self) -> bool:
        """Whether a step can be planned for it on what the host knows."""
        if self.status is not RequestStatus.RUNNING or self.is_verifying:
            return False
        return self.look_ahead or not self.num_in_flight

    @property
    def awaits_tokens(self) -> bool:
        """Whether a step in flight yields tokens that the host has not read."""
        return self.is_verifying or self.num_in_flight > 0
