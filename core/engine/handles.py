"""The caller's end of a request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any

from .. import interrupts
from ..errors import RequestCancelledError
from ..ids import RequestId
from .completion import Completion, Piece


class Handle:
    """A request that was handed to the engine.

    Iterate it for pieces (`for` or `async for`), or take the whole with `result()` or
    `await`. Any number of threads and tasks may do so at once. The engine thread calls the
    underscored methods.
    """

    def __init__(self, request_id: RequestId, cancel: Callable[[RequestId], None]) -> None:
        self.id = request_id
        self._cancel = cancel
        self._future: Future[Completion] = Future()
        self._pieces: list[Piece] = []
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end and return the completion.

        Args:
            timeout: Seconds to wait at most.

        Raises:
            TimeoutError: The time ran out; the request goes on.
            RequestCancelledError: It was cancelled.
            NeveError: It failed.
        """
        return interrupts.result(self._future, timeout)

    def cancel(self) -> None:
        """Stop the request at the next step; a finished one stays finished."""
        self._cancel(self.id)

    @property
    def done(self) -> bool:
        """Whether the request has ended, however."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, Completion]:
        # shielded: a cancelled task must not mark the engine's future as cancelled
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()

    def __iter__(self) -> Iterator[Piece]:
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
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(wake.set)

        with self._changed:
            self._listeners.append(listener)
        try:
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
        finally:
            with self._changed:
                self._listeners.remove(listener)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._notify()

    def _finish(self, completion: Completion) -> None:
        self._future.set_result(completion)
        self._notify()

    def _fail(self, error: BaseException) -> None:
        self._future.set_exception(error)
        self._notify()

    def _cancelled(self) -> None:
        self._fail(RequestCancelledError(f"request {self.id} was cancelled"))
