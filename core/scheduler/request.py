"""The scheduler's state of one request."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ..contract.prompt import ExtraKeys
from ..errors import RequestStateError
from ..ids import SHARED_DOMAIN, RequestId, SaltDomain


class RequestStatus(enum.Enum):
    """The status of a request."""

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
    """A prompt and its answer so far. Only this class holds the tokens of a request.

    Three cursors describe a request::

        [0, num_computed)                    handed to steps; the committed part is the
                                             sequence's frontier
        [0, num_known)                       tokens whose value exists: read by the host, or
                                             sampled by a step in flight
        [num_known, num_known + num_drafted) proposals that the next step verifies

    The next step computes `num_pending` known tokens, cut by the step's budget. Up to
    `num_drafted` proposals follow the last known token if budget and blocks are left. Prefill,
    decode and verification differ only in the values of the cursors.

    Attributes:
        id: The request's id; ids rise in arrival order.
        tokens: Tokens that the host knows: the prompt, then the answer.
        num_prompt_tokens: Length of the prompt.
        max_tokens: Most tokens to generate, clamped to context and cache.
        salt: Sharing domain.
        extra_keys: Identity of the prompt's blocks beside tokens, one tuple per block.
        owner: The conversation of the request; "" if the caller named none.
        look_ahead: Whether a step may be planned on a token that the host has not read. False
            for requests whose drafts depend on the newest token; other requests do not wait.
        sequence: The cache side; None before admission and after release.
        grid_origin: Position from which breaks at multiples of the chunk size count.
        boundaries: Positions at which the prefill stops for a snapshot.
        drafts: Proposals for the tokens behind the known ones.
        num_in_flight: Sampled tokens that the host has not read: 0 or 1 when a step is
            planned, and 2 between planning a step and settling the previous step.
        is_verifying: Whether a step that verifies drafts is in flight. The number of its
            tokens is unknown, so the request is not planned before the step is read.
        cached_tokens: Prompt tokens found in memory or on disk at first admission; None
            before.
        restored_tokens: The part of `cached_tokens` that came from disk.
        held_tokens: Tokens whose blocks were in memory at first admission, with or without
            the state at their end.
        miss: The miss cause of the cold tier at first admission.
        preemptions: How often the request was preempted.
        protected_until: Number of known tokens before which the request is not preempted
            again, unless every request is protected.
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
        """Change the status.

        Raises:
            RequestStateError: `MOVES` does not allow the change.
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
        """Positions handed to steps."""
        return self.sequence.cursor

    @property
    def num_known(self) -> int:
        """Tokens whose values exist, on the host or on the device."""
        return len(self.tokens) + self.num_in_flight

    @property
    def num_drafted(self) -> int:
        """Drafts that the next step can verify; drafts beyond `max_tokens` do not count."""
        return min(len(self.drafts), max(0, self.last_position - self.num_known))

    @property
    def last_position(self) -> int:
        """Number of positions to compute; the last token of an answer is never computed."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def num_pending(self) -> int:
        """Known tokens of the request's next step, before the budget cut."""
        end = min(self.num_known, self.last_position)
        return max(end - self.num_computed, 0)

    @property
    def is_ready(self) -> bool:
        """Whether a step can be planned for the request now."""
        if self.status is not RequestStatus.RUNNING or self.is_verifying:
            return False
        return self.look_ahead or not self.num_in_flight

    @property
    def awaits_tokens(self) -> bool:
        """Whether a step in flight yields tokens that the host has not read."""
        return self.is_verifying or self.num_in_flight > 0
