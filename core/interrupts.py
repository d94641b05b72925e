"""Ctrl-C, delivered only where nothing is half open or half closed.

Python raises KeyboardInterrupt between any two instructions of the main thread: between the
start of an engine and the variable that would close it, inside the removal of a folder, inside
`Condition.wait`, which may then lose its lock. Two rules take the place of that.

- A program that holds nothing ends at once: `end_at_once`.
- Inside `deferred`, an interrupt is only noted, and raised by the next call of `check`, `wait`,
  `result` or `join`, or at once inside `allowed`. `with` blocks then close what they hold, and
  no interrupt can fall into that.

All of it concerns the main thread alone, as Python's handlers do. In other threads, and in a
process whose owner handles SIGINT differently, these functions change nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended, by the convention of shells: 128 + SIGINT."""

PATIENCE_S = 1.0
"""How long an interrupt may stay noted before another one gets the outer handler."""

_POLL_S = 0.05  # a handler that raised inside a wait could leave the wait's lock behind

_Handler = Callable[[int, FrameType | None], object]


class _AtOnce:
    """Ends the process; works to the last moment of the interpreter."""

    def __init__(self, line: bytes) -> None:
        self._line = line
        self._write, self._exit = os.write, os._exit

    def __call__(self, number: int, frame: FrameType | None) -> None:
        with suppress(OSError):
            self._write(2, self._line)
        self._exit(INTERRUPTED)


def end_at_once(line: str) -> None:
    """Let an interrupt end the process at once, with exit code 130: for a program's `main`.

    An inherited SIGINT that is ignored stays ignored.

    Args:
        line: What is written to stderr.
    """
    if _is_ours(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, _AtOnce(f"{line}\n".encode()))


def exit_now() -> NoReturn:
    """End a process that was interrupted: what still runs in its threads is not waited for.

    The interpreter's own exit would take MLX apart under them, which aborts.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(INTERRUPTED)


def ignore() -> None:
    """Ignore interrupts from now on: for a program that has nothing left to do but to exit."""
    if _is_main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Scope:
    """What `deferred` knows while it holds interrupts back."""

    def __init__(self, outer: _Handler) -> None:
        self.outer = outer
        self.num_allowed = 0
        self.noted_at: float | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.num_allowed:
            self.deliver()
        elif self.noted_at is None:
            self.noted_at = time.monotonic()
        elif time.monotonic() - self.noted_at > PATIENCE_S:
            self.outer(number, frame)

    def deliver(self) -> None:
        """Raise; whatever block had allowed it is left by that."""
        self.num_allowed, self.noted_at = 0, None
        raise KeyboardInterrupt


_scope: _Scope | None = None


class deferred:  # noqa: N801  used as a function is
    """Hold interrupts back until the main thread asks for them, or the block is left.

    Another one, a second after one that nobody has asked for, gets the handler from before.
    """

    def __init__(self) -> None:
        self._made: _Scope | None = None

    def __enter__(self) -> Self:
        global _scope
        outer = signal.getsignal(signal.SIGINT)
        if _scope is None and _is_main_thread() and _is_ours(outer):
            assert callable(outer)
            made = _Scope(outer)
            signal.signal(signal.SIGINT, made.handle)
            _scope = self._made = made
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _scope
        made, self._made = self._made, None
        if made is None:
            return
        _scope = None
        signal.signal(signal.SIGINT, made.outer)
        if made.noted_at is not None and not isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt


class allowed:  # noqa: N801  used as a function is
    """Let an interrupt be raised anywhere in the block: for calls that wait by themselves.

    The block must hold nothing that an exception between two instructions would lose.
    """

    def __init__(self) -> None:
        self._scope = _current()

    def __enter__(self) -> Self:
        if self._scope is not None:
            self._scope.num_allowed += 1
            if self._scope.noted_at is not None:
                self._scope.deliver()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._scope is not None:
            self._scope.num_allowed = max(0, self._scope.num_allowed - 1)


def check() -> None:
    """Raise an interrupt that was noted.

    Raises:
        KeyboardInterrupt: There is one.
    """
    scope = _current()
    if scope is not None and scope.noted_at is not None:
        scope.deliver()


def wait(condition: threading.Condition) -> None:
    """Wait to be notified, or less: the caller looks again at what it waits for.

    Raises:
        KeyboardInterrupt: An interrupt was noted.
    """
    if _current() is None:
        condition.wait()
    else:
        condition.wait(_POLL_S)
        check()


def result(future: Future[T], timeout_s: float | None = None) -> T:
    """Wait for a future and return its result.

    Raises:
        TimeoutError: The time ran out.
        KeyboardInterrupt: An interrupt was noted.
    """
    if _current() is None:
        return future.result(timeout_s)
    from concurrent.futures import wait as wait_for  # a program's first import must be light

    _poll(timeout_s, lambda seconds: bool(wait_for([future], seconds).done))
    return future.result(0)


def join(thread: threading.Thread, timeout_s: float | None = None) -> None:
    """Wait for a thread's end, for at most `timeout_s`.

    Raises:
        KeyboardInterrupt: An interrupt was noted.
    """

    def has_ended(seconds: float) -> bool:
        thread.join(seconds)
        return not thread.is_alive()

    if _current() is None:
        thread.join(timeout_s)
    else:
        _poll(timeout_s, has_ended)


def _poll(timeout_s: float | None, is_over: Callable[[float], bool]) -> None:
    """Ask in short turns, and look for an interrupt after each."""
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = _POLL_S if end is None else min(_POLL_S, end - time.monotonic())
        if is_over(max(0.0, left)) or left < 0:
            return
        check()


def _current() -> _Scope | None:
    """Return the scope, if this thread is the one that it concerns."""
    return _scope if _scope is not None and _is_main_thread() else None


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _is_ours(handler: object) -> bool:
    """Return whether a handler of SIGINT is Python's own or this module's."""
    return handler is signal.default_int_handler or isinstance(handler, _AtOnce)
