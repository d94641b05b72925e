"""The threads that read: objects of one restore after the other, checked."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

from ...errors import ObjectRejectedError
from ...log import get_logger
from ..objects.keys import ObjectName
from ..store.files import StoredObject
from .ticket import STATE, Payload, ReadRequest, Ticket

MAX_THREADS = 4

PORTION_BLOCKS = 8
"""Blocks that the engine thread takes at once when nothing else runs: a few large portions
cost less than many small ones."""


class ObjectSource(Protocol):
    """What the reader needs of a store."""

    def read(self, name: ObjectName, max_bytes: int) -> StoredObject | None:
        """Return an object's bytes, None if there is none."""
        ...

    def reject(self, name: ObjectName, identity: tuple[int, int]) -> bool:
        """Remove an unsound object and count it."""
        ...


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


class ColdReader:
    """Reads for all restores of a model, on threads of its own.

    Reading and hashing an object run without the interpreter's lock, so that threads add up.
    Errors of the disk are misses. The engine thread polls with `take`.
    """

    def __init__(self, source: ObjectSource, num_threads: int | None = None) -> None:
        """Start the threads.

        Args:
            source: Where objects are read.
            num_threads: How many at once; None means one a processor, 2 to `MAX_THREADS`.
        """
        count = num_threads or min(max(os.cpu_count() or 1, 2), MAX_THREADS)
        self._source = source
        self._tickets: list[Ticket] = []
        self._closed = False
        lock = threading.Lock()
        self._wanted = threading.Condition(lock)  # threads wait for something to read
        self._due = threading.Condition(lock)  # the engine thread waits for a portion
        self._log = get_logger("coldtier")
        self._threads = [
            threading.Thread(target=self._run, name=f"neve-cold-reader-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Begin to fill a ticket."""
        with self._wanted:
            self._tickets.append(ticket)
            self._wanted.notify_all()

    def take(self, ticket: Ticket, num_blocks: int = PORTION_BLOCKS) -> list[Payload]:
        """Return the next `num_blocks` blocks, without waiting; none before so many are ready.

        Fewer at a ticket's end, or if no more have room.
        """
        with self._wanted:
            taken = ticket.take(num_blocks)
            if taken:
                self._wanted.notify_all()
        return taken

    def is_done(self, ticket: Ticket) -> bool:
        """Return whether nothing more will become ready and all that was has been taken."""
        with self._wanted:
            return ticket.is_done

    def cause(self, ticket: Ticket) -> str | None:
        """Return why a ticket that is done has fewer blocks than were asked for."""
        with self._wanted:
            return ticket.cause

    def sidecar(self, ticket: Ticket) -> tuple[int, Payload] | None:
        """Return the sidecar of a ticket that is done and the boundary that it backs.

        The boundary counts in blocks from the ticket's first one. None without a sound one,
        and when a block before its boundary was missed: state is of no use at any other place.
        """
        with self._wanted:
            return ticket.sidecar

    def has_sidecar(self, ticket: Ticket) -> bool:
        """Return whether a sound sidecar was read, wherever the blocks end."""
        with self._wanted:
            return ticket.has_sidecar

    def wait(self, timeout_s: float) -> None:
        """Wait until a portion is ready or a ticket is done, for at most `timeout_s`."""
        with self._due:
            self._due.wait_for(lambda: any(map(_is_due, self._tickets)), timeout_s)

    def forget(self, ticket: Ticket) -> None:
        """Stop filling a ticket and let its bytes go; harmless when it is done."""
        with self._wanted:
            ticket.cancel()
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def close(self, timeout_s: float) -> None:
        """End the threads when they have read what they read, or leave them to a hung disk."""
        deadline = time.monotonic() + timeout_s
        with self._wanted:
            self._closed = True
            self._wanted.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_alive(self) -> bool:
        """Whether a thread still runs."""
        return any(thread.is_alive() for thread in self._threads)

    # -- on the threads --------------------------------------------------------------------

    def _run(self) -> None:
        while (claimed := self._claim()) is not None:
            ticket, index = claimed
            if index == STATE:
                self._find_sidecar(ticket)
            else:
                self._read_block(ticket, index)
            del claimed, ticket  # while the thread waits, nothing refers to the last restore

    def _claim(self) -> tuple[Ticket, int] | None:
        """Wait for something to read; None at the end."""
        with self._wanted:
            while not self._closed:
                for ticket in self._tickets:  # the oldest that has something and room for it
                    if (index := ticket.claim()) is not None:
                        return ticket, index
                self._wanted.wait()
        return None

    def _find_sidecar(self, ticket: Ticket) -> None:
        cause: str | None = None
        for request in ticket.sidecars:
            if ticket.is_cancelled:
                return
            payload = self._read(request)
            if not isinstance(payload, str):
                self._back(ticket, request.num_blocks, cause, payload)
                return
            cause = "no_sidecar" if payload == "no_block" else payload
        self._back(ticket, 0, cause, None)

    def _back(
        self, ticket: Ticket, num_blocks: int, cause: str | None, sidecar: Payload | None
    ) -> None:
        with self._wanted:
            ticket.back_by(num_blocks, cause, sidecar)
            self._wanted.notify_all()
            self._tell(ticket)

    def _read_block(self, ticket: Ticket, index: int) -> None:
        payload = self._read(ticket.blocks[index])
        with self._wanted:
            if isinstance(payload, str):
                ticket.end_at(index, payload)
            else:
                ticket.deliver(index, payload)
            self._tell(ticket)

    def _tell(self, ticket: Ticket) -> None:
        """Wake the engine thread for a portion; for less it would only contend for the lock."""
        if _is_due(ticket):
            self._due.notify_all()

    def _read(self, request: ReadRequest) -> Payload | str:
        try:
            return read_object(self._source, request)
        except Exception as error:  # noqa: BLE001  a door: a disk that fails is a miss
            self._log.warning("coldtier.read.failed", error=repr(error))
            return "no_block"


def _is_due(ticket: Ticket) -> bool:
    return ticket.is_due(PORTION_BLOCKS)
