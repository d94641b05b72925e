"""Handles: the caller's interface to a request."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import attrs

from .. import interrupts
from ..arguments import optional_seconds
from ..errors import EngineClosedError, RequestCancelledError
from ..ids import RequestId
from .completion import Completion, Piece
from .faults import Faults


@attrs.frozen(eq=False)
class _Listener:
    """A task that waits for a request.

    Attributes:
        loop: The task's event loop. The caller may have closed the loop.
        wake: The event that the task waits for.
        pieces: Whether each new piece sets the event; otherwise only the request's end does.
    """

    loop: asyncio.AbstractEventLoop
    wake: asyncio.Event
    pieces: bool

    def __call__(self) -> None:
        self.loop.call_soon_threadsafe(self.wake.set)


class Handle:
    """A submitted request.

    Iterate over a handle for pieces (`for` or `async for`). `result()` or `await` return the
    whole completion. Threads and tasks may use a handle concurrently. Methods with an
    underscore are for the engine thread.

    Attributes:
        id: The request's id.
    """

    def __init__(
        self, request_id: RequestId, cancel: Callable[[RequestId], None], faults: Faults
    ) -> None:
        """Make the handle of a request that is about to be queued.

        Args:
            request_id: The request's id.
            cancel: Queues the cancellation of a request.
            faults: Counts failing listeners.
        """
        self.id = request_id
        self._cancel = cancel
        self._faults = faults
        self._process = os.getpid()
        self._future: Future[Completion] = Future()
        # callers can no longer cancel the future; only the engine thread sets its result
        self._future.set_running_or_notify_cancel()
        self._pieces: list[Piece] = []
        self._changed = threading.Condition()
        self._listeners: set[_Listener] = set()

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end and return the completion.

        Args:
            timeout: Most seconds to wait; None: no limit.

        Raises:
            TimeoutError: The time ran out; the request continues.
            RequestCancelledError: The request was cancelled.
            RequestError: The timeout is not a number.
            NeveError: The request failed.
        """
        timeout = optional_seconds("timeout", timeout)
        self._check_process()
        return interrupts.result(self._future, timeout)

    def cancel(self) -> None:
        """Stop the request before the next step; a finished request is not changed."""
        self._cancel(self.id)

    @property
    def done(self) -> bool:
        """Whether the request has finished, failed or been cancelled."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._end().__await__()

    async def _end(self) -> Completion:
        with self._listening(pieces=False) as wake:
            if not self.done:
                await wake.wait()
        return self._future.result()

    def __iter__(self) -> Iterator[Piece]:
        self._check_process()
        position = 0
        while True:
            with self._changed:
                while len(self._pieces) == position and not self.done:
                    interrupts.wait(self._changed)
                new = self._pieces[position:]
            if not new:
                self._future.result()
                return
            position += len(new)
            yield from new

    async def __aiter__(self) -> AsyncIterator[Piece]:
        with self._listening(pieces=True) as wake:
            position = 0
            while True:
                wake.clear()
                ended = self.done
                new = self._pieces[position:]
                position += len(new)
                for piece in new:
                    yield piece
                if ended and not new:
                    self._future.result()
                    return
                if not new:
                    await wake.wait()

    @contextmanager
    def _listening(self, *, pieces: bool) -> Generator[asyncio.Event]:
        """Register an event of the running loop; `_notify` sets the event."""
        self._check_process()
        listener = _Listener(asyncio.get_running_loop(), asyncio.Event(), pieces)
        with self._changed:
            self._listeners.add(listener)
        try:
            yield listener.wake
        finally:
            with self._changed:
                self._listeners.discard(listener)

    def _check_process(self) -> None:
        if os.getpid() != self._process and not self.done:
            raise forked()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
            listeners = [each for each in self._listeners if each.pieces or self.done]
        for listener in listeners:
            # a caller may close an event loop while one of its tasks waits
            with self._faults.contain("listener"):
                listener()
                continue
            with self._changed:
                self._listeners.discard(listener)

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._notify()

    def _finish(self, completion: Completion) -> None:
        self._future.set_result(completion)
        self._notify()

    def _fail(self, error: BaseException) -> None:
        """End the request with an error; an ended request is not changed."""
        if not self.done:
            self._future.set_exception(error)
            self._notify()

    def _cancelled(self) -> None:
        self._fail(RequestCancelledError(f"request {self.id} was cancelled"))


def forked() -> EngineClosedError:
    """Return the error of a forked process, which has no engine thread."""
    return EngineClosedError(
        "the model belongs to the process that loaded it, and this one was forked from it: "
        "threads do not survive a fork, so load the model here"
    )
