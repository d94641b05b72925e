"""Requests end with their callers: streams that are dropped, processes that fork."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from neve.errors import EngineClosedError, RequestError

# a fork with threads is what is tested; Python 3.12 warns of it
pytestmark = [pytest.mark.mlx, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]

LONG: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True}


def _becomes_idle(model: Any) -> bool:
    """Return whether a model comes to run nothing within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = model.stats().scheduler
        if not now.running and not now.waiting:
            return True
    return False


@pytest.mark.parametrize("num_taken", [0, 1])
@pytest.mark.parametrize("kind", ["model", "chat"])
def test_dropped_stream_cancels(model: Any, goldens: dict[str, Any], kind: str, num_taken: int):
    """A stream that nobody refers to ends its request, whether or not a piece was taken."""
    before = model.stats().scheduler.completed
    if kind == "model":
        stream = model.stream(goldens["kjv"]["ids"], **LONG)
    else:
        stream = model.chat(**LONG).stream("Tell me a story.")
    for _ in range(num_taken):
        next(stream)
    del stream

    assert _becomes_idle(model)
    assert model.stats().scheduler.completed == before + 1


def test_chat_stream_is_queued_at_once(model: Any):
    """`chat.stream` queues its turn as `model.stream` does; a wrong option is refused there."""
    before = model.stats().scheduler
    stream = model.chat(**LONG).stream("Tell me a story.")
    now = model.stats().scheduler
    stream.close()

    assert (now.admitted + now.waiting) - (before.admitted + before.waiting) == 1
    with pytest.raises(RequestError):
        model.chat().stream("Tell me a story.", temperature=-1)


def test_closed_stream_yields_no_more(model: Any, goldens: dict[str, Any]):
    """After `close` a stream is at its end; as a context manager it closes itself."""
    with model.stream(goldens["kjv"]["ids"], **LONG) as stream:
        next(stream)

    assert list(stream) == []


def test_failing_memory_of_a_chat_ends_nothing(model: Any):
    """The history grows when the last piece was taken, and not before."""
    chat = model.chat(max_tokens=3)
    stream = chat.stream("Tell me a story.")
    first = next(stream)

    assert chat.messages == []
    assert first.text + "".join(piece.text for piece in stream) == chat.messages[-1]["content"]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "generate": lambda model, _: model.generate("Once", max_tokens=1),
    "submit": lambda model, _: model.submit("Once"),
    "stats": lambda model, _: model.stats(),
    "result": lambda _, handle: handle.result(),
    "iteration": lambda _, handle: list(handle),
}


@pytest.mark.parametrize("name", CALLS)
def test_forked_child_raises_at_once(model: Any, goldens: dict[str, Any], name: str):
    """A child has the model but not its thread: each call fails, and closing is harmless."""
    handle = model.submit(goldens["kjv"]["ids"], **LONG)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            CALLS[name](model, handle)
        except EngineClosedError as error:
            handle.cancel()
            model.close()
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    killer = threading.Timer(60, os.kill, (child, signal.SIGKILL))
    killer.start()
    _, status = os.waitpid(child, 0)
    killer.cancel()
    handle.cancel()

    assert os.waitstatus_to_exitcode(status) == 0
    assert model.generate("Once", max_tokens=1).usage.completion_tokens == 1
