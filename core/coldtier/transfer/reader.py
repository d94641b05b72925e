"""The thread that reads: objects of one restore after the other, checked, in chain order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import attrs

from ...errors import ObjectRejectedError
from ...log import get_logger
from ..objects.keys import ObjectName
from ..store.files import StoredObject

MAX_READY_BYTES = 16 << 20
"""Bytes that wait for the engine thread, of one restore; a host-memory bound."""

MIN_READY_BLOCKS = 2

PORTION_BLOCKS = 8
"""Blocks that the engine thread takes at once when nothing else runs: a few large portions
cost less than many small ones."""

Payload: TypeAlias = list[memoryview]
Decode: TypeAlias = Callable[[memoryview], Payload]


class ObjectSource(Protocol):
    """What the reader needs of a store."""

    def read(self, name: ObjectName, max_bytes: int) -> StoredObject | None:
        """Return an object's bytes, None if there is none."""
        ...

    def reject(self, name: ObjectName, identity: tuple[int, int]) -> bool:
        """Remove an unsound object and count it."""
        ...


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


def read_object(source: ObjectSource, request: ReadRequest) -> Payload | str:
    """Return an object's payload, or the cause of the miss.

    Whatever was opened and is unsound is removed and counted, once.
    """
    stored = source.read(request.name, request.max_bytes)
    if stored is None:
        return "no_block"
    try:
        return request.decode(memoryview(stored.data))
    except ObjectRejectedError as error:
        source.reject(request.name, stored.identity)
        return error.cause


@attrs.define(eq=False)
class Ticket:
    """One restore on its way. The reader fills it, the engine thread empties it.

    A restore with sidecars first looks for the deepest sound one, which decides where it
    ends; then come the blocks.

    Attributes:
        blocks: What is wanted, in chain order.
        sidecars: Sidecars that may back the restore, deepest first.
        max_ready: Blocks that may wait for the engine thread.
    """

    blocks: Sequence[ReadRequest]
    sidecars: Sequence[ReadRequest] = ()
    max_ready: int = MIN_READY_BLOCKS
    _end: int = attrs.field(init=False, default=0)
    _num_read: int = attrs.field(init=False, default=0)
    _ready: deque[Payload] = attrs.field(init=False, factory=deque)
    _sidecar: Payload | None = attrs.field(init=False, default=None)
    _boundary: int = attrs.field(init=False, default=0)
    _cause: str | None = attrs.field(init=False, default=None)
    _cancelled: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._end = len(self.blocks)

    def is_due(self, num_blocks: int) -> bool:
        """Return whether so many blocks are ready, or as many as ever will; lock held."""
        wanted = min(num_blocks, self.max_ready, self._end - self._num_read + len(self._ready))
        return len(self._ready) >= wanted


class ColdReader:
    """Reads for all restores of a model, on one thread of its own.

    Errors of the disk are misses. The engine thread polls with `take`.
    """

    def __init__(self, source: ObjectSource) -> None:
        self._source = source
        self._tickets: list[Ticket] = []
        self._closed = False
        self._changed = threading.Condition()
        self._log = get_logger("coldtier")
        self._thread = threading.Thread(target=self._run, name="neve-cold-reader", daemon=True)
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Begin to fill a ticket."""
        with self._changed:
            self._tickets.append(ticket)
            self._changed.notify_all()

    def take(self, ticket: Ticket, num_blocks: int = PORTION_BLOCKS) -> list[Payload]:
        """Return the next `num_blocks` blocks, without waiting; none before so many are ready.

        Fewer at a ticket's end, or if no more have room.
        """
        with self._changed:
            if not ticket.is_due(num_blocks):
                return []
            count = min(num_blocks, len(ticket._ready))
            taken = [ticket._ready.popleft() for _ in range(count)]
            if taken:
                self._changed.notify_all()
        return taken

    def is_done(self, ticket: Ticket) -> bool:
        """Return whether nothing more will become ready and all that was has been taken."""
        with self._changed:
            return ticket._num_read == ticket._end and not ticket._ready

    def cause(self, ticket: Ticket) -> str | None:
        """Return why a ticket that is done has fewer blocks than were asked for."""
        with self._changed:
            return ticket._cause

    def sidecar(self, ticket: Ticket) -> tuple[int, Payload] | None:
        """Return the sidecar of a ticket that is done and the boundary that it backs.

        The boundary counts in blocks from the ticket's first one. None without a sound one,
        and when a block before its boundary was missed: state is of no use at any other place.
        """
        with self._changed:
            if ticket._sidecar is None or ticket._end < ticket._boundary:
                return None
            return ticket._boundary, ticket._sidecar

    def has_sidecar(self, ticket: Ticket) -> bool:
        """Return whether a sound sidecar was read, wherever the blocks end."""
        with self._changed:
            return ticket._sidecar is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until a portion is ready or a ticket is done, for at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(
                lambda: any(ticket.is_due(PORTION_BLOCKS) for ticket in self._tickets),
                timeout_s,
            )

    def forget(self, ticket: Ticket) -> None:
        """Stop filling a ticket and let its bytes go; harmless when it is done."""
        with self._changed:
            ticket._cancelled = True
            ticket._sidecar = None
            ticket._ready.clear()
            if ticket in self._tickets:
                self._tickets.remove(ticket)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """End the thread when it has read what it reads, or leave it to a disk that hangs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    # -- on the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._next() is not None)
                ticket = self._next()
                if self._closed or ticket is None:
                    return
            self._serve(ticket)

    def _next(self) -> Ticket | None:
        """Return the oldest ticket that has something to read and room for it."""
        for ticket in self._tickets:
            if ticket._num_read < ticket._end and len(ticket._ready) < ticket.max_ready:
                return ticket
        return None

    def _serve(self, ticket: Ticket) -> None:
        if ticket.sidecars and ticket._sidecar is None:
            self._find_sidecar(ticket)
        else:
            self._read_block(ticket)

    def _find_sidecar(self, ticket: Ticket) -> None:
        cause: str | None = None
        for request in ticket.sidecars:
            if ticket._cancelled:
                return
            payload = self._read(request)
            if not isinstance(payload, str):
                self._end_at(ticket, request.num_blocks, cause, payload)
                return
            cause = "no_sidecar" if payload == "no_block" else payload
        self._end_at(ticket, 0, cause)

    def _read_block(self, ticket: Ticket) -> None:
        payload = self._read(ticket.blocks[ticket._num_read])
        if isinstance(payload, str):
            self._end_at(ticket, ticket._num_read, payload)
            return
        with self._changed:
            ticket._num_read += 1
            if not ticket._cancelled:
                ticket._ready.append(payload)
            self._changed.notify_all()

    def _end_at(
        self,
        ticket: Ticket,
        num_blocks: int,
        cause: str | None,
        sidecar: Payload | None = None,
    ) -> None:
        """Say where a ticket ends, and why there; a sidecar is the one that backs its end."""
        with self._changed:
            ticket._end, ticket._cause = num_blocks, cause
            if sidecar is not None and not ticket._cancelled:
                ticket._sidecar, ticket._boundary = sidecar, num_blocks
            self._changed.notify_all()

    def _read(self, request: ReadRequest) -> Payload | str:
        try:
            return read_object(self._source, request)
        except Exception as error:  # noqa: BLE001  a door: a disk that fails is a miss
            self._log.warning("coldtier.read.failed", error=repr(error))
            return "no_block"


def max_ready(block_bytes: int) -> int:
    """Return how many blocks of a restore may wait for the engine thread."""
    return max(MIN_READY_BLOCKS, MAX_READY_BYTES // max(1, block_bytes))
