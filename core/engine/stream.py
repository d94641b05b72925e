"""The pieces of a request, for one consumer that may leave early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from .completion import Completion, Piece
from .handles import Handle


class Stream(Iterator[Piece]):
    """Yields a request's pieces as they come; letting go of it cancels the request.

    The request is queued before the first `next`. It is cancelled when the stream is closed,
    when waiting for a piece is interrupted, and when nothing refers to the stream any more,
    whether or not a piece was ever taken.
    """

    def __init__(
        self, handle: Handle, ended: Callable[[Completion], None] | None = None
    ) -> None:
        """Bind a request.

        Args:
            handle: The request.
            ended: Is told the completion when the last piece was taken, on the consumer's
                thread.
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
        """Take no more pieces; a request that still runs is cancelled."""
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
        # may run on any thread, in the middle of anything: cancelling only puts a command
        self.close()
