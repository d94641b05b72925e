"""The state of one restore: requested objects, read blocks, and the end of the restore."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from ..objects.keys import ObjectName

MAX_READY_BYTES = 16 << 20
"""Bytes of one restore that wait for the engine thread; a bound on host memory."""

MIN_READY_BLOCKS = 2

STATE: Final = -1
"""Index that denotes the sidecars, tried one after the other until one is sound."""

Payload: TypeAlias = list[memoryview]
Decode: TypeAlias = Callable[[memoryview], Payload]


@attrs.frozen(eq=False)
class ReadRequest:
    """An object to read.

    Attributes:
        name: The object's name.
        max_bytes: Size of a sound object.
        decode: Verifies and splits the bytes; raises `ObjectRejectedError`.
        num_blocks: For a sidecar, its boundary in blocks; 0 for a block.
    """

    name: ObjectName
    max_bytes: int
    decode: Decode
    num_blocks: int = 0


@attrs.define(eq=False)
class Ticket:
    """One restore, filled by reader threads and emptied by the engine thread.

    A restore with sidecars first looks for the deepest sound sidecar, whose boundary ends the
    restore. Then the blocks are read, by the threads in any order, and taken in chain order.
    All methods need the reader's lock.

    Attributes:
        blocks: Requested blocks, in chain order.
        sidecars: Sidecars that may back the restore, deepest first.
        max_ready: Bound on blocks that are being read or wait for the engine thread.
        is_cancelled: The engine thread has cancelled the restore.
        cause: Miss cause of an early end; None if all blocks can be read.
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
        """Blocks that are ready to be taken."""
        return len(self._ready)

    @property
    def is_done(self) -> bool:
        """Whether the ticket has ended and all ready blocks have been taken."""
        return self._num_read == self._end and not self._ready

    @property
    def sidecar(self) -> tuple[int, Payload] | None:
        """The sidecar and its boundary, in blocks; None unless the blocks reach it."""
        if self._sidecar is None or self._end < self._boundary:
            return None
        return self._boundary, self._sidecar

    @property
    def has_sidecar(self) -> bool:
        """Whether a sound sidecar was read, even if a block before it was missed."""
        return self._sidecar is not None

    def is_due(self, num_blocks: int) -> bool:
        """Return whether `num_blocks` blocks are ready, or all that can become ready."""
        remaining = self._end - self._num_read + self.num_ready
        return self.num_ready >= min(num_blocks, self.max_ready, remaining)

    def claim(self) -> int | None:
        """Return the next block's index or `STATE` for a thread; None without work."""
        if self._awaits_state:
            first, self._searches = not self._searches, True
            return STATE if first else None
        has_room = self._num_claimed - self._num_taken < self.max_ready
        if self._num_claimed == self._end or not has_room:
            return None
        self._num_claimed += 1
        return self._num_claimed - 1

    def deliver(self, index: int, payload: Payload) -> None:
        """Accept a block that was read."""
        if self.is_cancelled or index >= self._end:
            return
        self._early[index] = payload
        while (payload_in_line := self._early.pop(self._num_read, None)) is not None:
            self._ready.append(payload_in_line)
            self._num_read += 1

    def end_at(self, num_blocks: int, cause: str) -> None:
        """End the blocks at `num_blocks` for a cause, unless they end earlier."""
        if num_blocks >= self._end:
            return
        self._end, self.cause = num_blocks, cause
        self._num_claimed = num_blocks  # later blocks are discarded when they arrive
        self._early = {i: payload for i, payload in self._early.items() if i < self._end}

    def back_by(self, num_blocks: int, cause: str | None, sidecar: Payload | None) -> None:
        """End the restore at a sidecar's boundary; at 0 without a sidecar.

        Args:
            num_blocks: The boundary, in blocks.
            cause: Miss cause of the deepest sidecar; None if the deepest one is sound.
            sidecar: The sidecar.
        """
        self._end, self.cause, self._awaits_state = num_blocks, cause, False
        if sidecar is not None and not self.is_cancelled:
            self._sidecar, self._boundary = sidecar, num_blocks

    def take(self, num_blocks: int) -> list[Payload]:
        """Return the next `num_blocks` blocks; none until all of them are ready."""
        if not self.is_due(num_blocks):
            return []
        taken = [self._ready.popleft() for _ in range(min(num_blocks, self.num_ready))]
        self._num_taken += len(taken)
        return taken

    def cancel(self) -> None:
        """Release all bytes, and accept no more."""
        self.is_cancelled = True
        self._sidecar = None
        self._ready.clear()
        self._early.clear()


def max_ready(block_bytes: int) -> int:
    """Return the number of blocks of a restore that may wait for the engine thread."""
    return max(MIN_READY_BLOCKS, MAX_READY_BYTES // max(1, block_bytes))
