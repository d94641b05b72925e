"""The reader threads: objects of one restore after the other, verified."""

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
"""Blocks that the engine thread takes at once while no step runs: a few large portions cost
less than many small ones."""


class ObjectSource(Protocol):
    """The store, as the reader uses it."""

    def read(self, name: ObjectName, max_bytes: int) -> StoredObject | None:
        """Return an object's bytes; None if there is no such object."""
        ...

    def reject(self, name: ObjectName, identity: tuple[int, int]) -> bool:
        """Remove an unsound object and count the corruption."""
        ...


def read_object(source: ObjectSource, request: ReadRequest) -> Payload | str:
    """Return an object's payload, or the miss cause.

    An object that was opened and found unsound is removed and counted, once.
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
    """Reads the objects of all restores of a model, on threads of its own.

    Reading and hashing run without the interpreter's lock, so more threads read faster.
    Disk errors are misses. The engine thread polls with `take`.
    """

    def __init__(self, source: ObjectSource, num_threads: int | None = None) -> None:
        """Start the threads.

        Args:
            source: The store.
            num_threads: Number of threads; None means one a processor, 2 to `MAX_THREADS`.
        """
        count = num_threads or min(max(os.cpu_count() or 1, 2), MAX_THREADS)
        self._source = source
        self._tickets: list[Ticket] = []
        self._closed = False
        lock = threading.Lock()
        self._wanted = threading.Condition(lock)  # threads wait for an object to read
        self._due = threading.Condition(lock)  # the engine thread waits for a portion
        self._log = get_logger("coldtier")
        self._threads = [
            threading.Thread(target=self._run, name=f"neve-cold-reader-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Queue a ticket for the threads."""
        with self._wanted:
            self._tickets.append(ticket)
            self._wanted.notify_all()

    def take(self, ticket: Ticket, num_blocks: int = PORTION_BLOCKS) -> list[Payload]:
        """Return the next `num_blocks` blocks without waiting; none until all are ready.

        Fewer blocks at a ticket's end, or if the bound on ready bytes allows no more.
        """
        with self._wanted:
            taken = ticket.take(num_blocks)
            if taken:
                self._wanted.notify_all()
        return taken

    def is_done(self, ticket: Ticket) -> bool:
        """Return whether the ticket has ended and all ready blocks have been taken."""
        with self._wanted:
            return ticket.is_done

    def cause(self, ticket: Ticket) -> str | None:
        """Return the miss cause of a finished ticket; None if all its blocks were read."""
        with self._wanted:
            return ticket.cause

    def sidecar(self, ticket: Ticket) -> tuple[int, Payload] | None:
        """Return the sidecar of a finished ticket and its boundary.

        The boundary counts in blocks from the ticket's first block. None without a sound
        sidecar, and after a miss before the boundary: a sidecar is useless elsewhere.
        """
        with self._wanted:
            return ticket.sidecar

    def has_sidecar(self, ticket: Ticket) -> bool:
        """Return whether a sound sidecar was read, even if a block before it was missed."""
        with self._wanted:
            return ticket.has_sidecar

    def wait(self, timeout_s: float) -> None:
        """Wait until a portion is ready or a ticket is done, for at most `timeout_s`."""
        with self._due:
            self._due.wait_for(lambda: any(map(_is_due, self._tickets)), timeout_s)

    def forget(self, ticket: Ticket) -> None:
        """Cancel a ticket and release its bytes; no effect on a finished ticket."""
        with self._wanted:
            ticket.cancel()
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def close(self, timeout_s: float) -> None:
        """End the threads after their present reads; a thread in a hung disk is left."""
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
            del claimed, ticket  # a waiting thread must not keep the last restore alive

    def _claim(self) -> tuple[Ticket, int] | None:
        """Wait for an object to read; None when the reader closes."""
        with self._wanted:
            while not self._closed:
                for ticket in self._tickets:  # the oldest ticket with work and room
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
        """Wake the engine thread for a whole portion; fewer blocks only contend the lock."""
        if _is_due(ticket):
            self._due.notify_all()

    def _read(self, request: ReadRequest) -> Payload | str:
        try:
            return read_object(self._source, request)
        except Exception as error:  # noqa: BLE001  a boundary: a disk error is a miss
            self._log.warning("coldtier.read.failed", error=repr(error))
            return "no_block"


def _is_due(ticket: Ticket) -> bool:
    return ticket.is_due(PORTION_BLOCKS)
