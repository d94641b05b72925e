"""The pieces of a request as an iterator that cancels the request when closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from .completion import Completion, Piece
from .handles import Handle


class Stream(Iterator[Piece]):
    """Yields a request's pieces. Closing or deleting the stream cancels the request.

    The request is queued before the first `next`. An interrupted `next` cancels the request
    too.
    """

    def __init__(
        self, handle: Handle, ended: Callable[[Completion], None] | None = None
    ) -> None:
        """Bind a request.

        Args:
            handle: The request.
            ended: Called with the completion after the last piece, on the consumer's thread.
        """
        self._handle = handle
        self._pieces: Iterator[Piece] | None = iter(handle)
        self._ended = ended

    def __next__(self) -> Piece:
        """Wait for the next piece.

        Raises:
            StopIteration: The request has ended, or the stream was closed.
            NeveError: The request failed.
        """
        if self._pieces is None:
            raise StopIteration
        try:
            return next(self._pieces)
        except StopIteration:
            self._pieces, ended = None, self._ended
            if ended is not None:
                ended(self._handle.result())
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the iteration and cancel an unfinished request."""
        self._pieces = None
        if not self._handle.done:
            self._handle.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # may run on any thread at any time: cancelling only queues a command
        self.close()
