"""One restore on its way: what is wanted, what was read, and where it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from ..objects.keys import ObjectName

MAX_READY_BYTES = 16 << 20
"""Bytes that wait for the engine thread, of one restore; a host-memory bound."""

MIN_READY_BLOCKS = 2

STATE: Final = -1
"""In place of a block's index: the sidecars, one after the other until one is sound."""

Payload: TypeAlias = list[memoryview]
Decode: TypeAlias = Callable[[memoryview], Payload]


@attrs.frozen(eq=False)
class ReadRequest:
    """An object that is wanted.

    Attributes:
        name: Its name.
        max_bytes: The largest size that a sound one has.
        decode: Checks the bytes and takes them apart; raises `ObjectRejectedError`.
        num_blocks: For a sidecar, the boundary that it backs; 0 for a block.
    """

    name: ObjectName
    max_bytes: int
    decode: Decode
    num_blocks: int = 0


@attrs.define(eq=False)
class Ticket:
    """One restore. Reader threads fill it, the engine thread empties it.

    A restore with sidecars first looks for the deepest sound one, which decides where it
    ends; then come the blocks. Threads may read them in any order, and they are handed out
    in chain order. All methods need the reader's lock.

    Attributes:
        blocks: What is wanted, in chain order.
        sidecars: Sidecars that may back the restore, deepest first.
        max_ready: Blocks that are being read or wait for the engine thread, at most.
        is_cancelled: Nobody wants it any more.
        cause: Why it ends before what was wanted; None if it does not.
    """

    blocks: Sequence[ReadRequest]
    sidecars: Sequence[ReadRequest] = ()
    max_ready: int = MIN_READY_BLOCKS
    is_cancelled: bool = attrs.field(init=False, default=False)
    cause: str | None = attrs.field(init=False, default=None)
    _end: int = attrs.field(init=False, default=0)
    _num_claimed: int = attrs.field(init=False, default=0)
    _num_read: int = attrs.field(init=False, default=0)  # without a gap
    _num_taken: int = attrs.field(init=False, default=0)
    _early: dict[int, Payload] = attrs.field(init=False, factory=dict[int, Payload])
    _ready: deque[Payload] = attrs.field(init=False, factory=deque[Payload])
    _sidecar: Payload | None = attrs.field(init=False, default=None)
    _boundary: int = attrs.field(init=False, default=0)
    _searches: bool = attrs.field(init=False, default=False)
    _awaits_state: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._end = len(self.blocks)
        self._awaits_state = bool(self.sidecars)

    @property
    def num_ready(self) -> int:
        """Blocks that can be taken."""
        return len(self._ready)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will become ready and all that was has been taken."""
        return self._num_read == self._end and not self._ready

    @property
    def sidecar(self) -> tuple[int, Payload] | None:
        """The sidecar and its boundary, in blocks; None unless the blocks reach it."""
        if self._sidecar is None or self._end < self._boundary:
            return None
        return self._boundary, self._sidecar

    @property
    def has_sidecar(self) -> bool:
        """Whether a sound sidecar was read, wherever the blocks end."""
        return self._sidecar is not None

    def is_due(self, num_blocks: int) -> bool:
        """Return whether so many blocks are ready, or as many as ever will be."""
        remaining = self._end - self._num_read + self.num_ready
        return self.num_ready >= min(num_blocks, self.max_ready, remaining)

    def claim(self) -> int | None:
        """Return what a thread reads next: a block's index or `STATE`; None for nothing."""
        if self._awaits_state:
            first, self._searches = not self._searches, True
            return STATE if first else None
        has_room = self._num_claimed - self._num_taken < self.max_ready
        if self._num_claimed == self._end or not has_room:
            return None
        self._num_claimed += 1
        return self._num_claimed - 1

    def deliver(self, index: int, payload: Payload) -> None:
        """Take over a block that was read."""
        if self.is_cancelled or index >= self._end:
            return
        self._early[index] = payload
        while (payload_in_line := self._early.pop(self._num_read, None)) is not None:
            self._ready.append(payload_in_line)
            self._num_read += 1

    def end_at(self, num_blocks: int, cause: str) -> None:
        """Say where the blocks end and why, unless they end before."""
        if num_blocks >= self._end:
            return
        self._end, self.cause = num_blocks, cause
        self._num_claimed = num_blocks  # those behind are read for nobody
        self._early = {i: payload for i, payload in self._early.items() if i < self._end}

    def back_by(self, num_blocks: int, cause: str | None, sidecar: Payload | None) -> None:
        """End at the boundary that a sidecar backs; at 0 without one.

        Args:
            num_blocks: The boundary.
            cause: Why it is not a deeper one; None if it is the deepest.
            sidecar: The sidecar.
        """
        self._end, self.cause, self._awaits_state = num_blocks, cause, False
        if sidecar is not None and not self.is_cancelled:
            self._sidecar, self._boundary = sidecar, num_blocks

    def take(self, num_blocks: int) -> list[Payload]:
        """Return the next `num_blocks` blocks; none before so many are ready."""
        if not self.is_due(num_blocks):
            return []
        taken = [self._ready.popleft() for _ in range(min(num_blocks, self.num_ready))]
        self._num_taken += len(taken)
        return taken

    def cancel(self) -> None:
        """Let all bytes go, and take over no more."""
        self.is_cancelled = True
        self._sidecar = None
        self._ready.clear()
        self._early.clear()


def max_ready(block_bytes: int) -> int:
    """Return how many blocks of a restore may wait for the engine thread."""
    return max(MIN_READY_BLOCKS, MAX_READY_BYTES // max(1, block_bytes))
