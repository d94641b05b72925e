"""Where an interrupt is raised, and where it is only noted."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future

import pytest

from neve import interrupts


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_outside_a_scope_nothing_changes():
    """Python's own handler raises where the interrupt falls."""
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_held_back_until_somebody_asks():
    """The block goes on; `check` raises once."""
    reached = False
    with interrupts.deferred():
        interrupt()
        reached = True
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.check()

    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_raised_when_the_block_is_left():
    """An interrupt for which nobody has asked is not lost, an error in the block or not."""
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        interrupt()
    with pytest.raises(KeyboardInterrupt):
        fail_interrupted()


def fail_interrupted() -> None:
    with interrupts.deferred():
        interrupt()
        raise ValueError


def test_nested_scopes_are_one():
    """The inner one neither raises nor takes the handler away."""
    reached = []

    def nest() -> None:
        with interrupts.deferred():
            with interrupts.deferred():
                interrupt()
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        nest()

    assert reached


def test_allowed_inside_a_scope():
    """A noted one is raised at once, one that comes then where it falls."""
    with interrupts.deferred():
        interrupt()
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            pytest.fail("the block was entered")
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            interrupt()
        interrupt()  # noted again: the block before is left
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_a_second_one_after_a_second_gets_the_outer_handler(monkeypatch):
    """Whoever has waited long enough is not held up by a clean-up."""
    monkeypatch.setattr(interrupts, "PATIENCE_S", 10.0)

    def clean_up() -> None:
        with interrupts.deferred():
            interrupt()
            interrupt()  # the same key press, as some programs send it twice
            monkeypatch.setattr(interrupts, "PATIENCE_S", -1.0)
            interrupt()
            pytest.fail("the outer handler was not called")

    with pytest.raises(KeyboardInterrupt):
        clean_up()


@pytest.mark.parametrize("kind", ["result", "join", "wait"])
def test_waits_end(kind):
    """An interrupt ends a wait for something that never comes."""
    stop, condition = threading.Event(), threading.Condition()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    timer = threading.Timer(0.2, interrupt_main)
    timer.start()
    waits = {
        "result": lambda: interrupts.result(Future()),
        "join": lambda: interrupts.join(thread),
        "wait": lambda: wait_for_ever(condition),
    }
    with interrupts.deferred(), pytest.raises(KeyboardInterrupt):
        waits[kind]()
    stop.set()
    thread.join()
    timer.join()

    assert condition.acquire(blocking=False)


def wait_for_ever(condition: threading.Condition) -> None:
    with condition:
        while True:
            interrupts.wait(condition)


def interrupt_main() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def test_waits_that_are_not_interrupted():
    """Inside a scope too, results, errors and timeouts are those of the future."""
    done, failed = Future[int](), Future[int]()
    done.set_result(7)
    failed.set_exception(ValueError("x"))
    with interrupts.deferred():
        assert interrupts.result(done) == 7
        with pytest.raises(ValueError, match="x"):
            interrupts.result(failed)
        with pytest.raises(TimeoutError):
            interrupts.result(Future(), 0.0)


def test_other_threads_are_not_concerned():
    """A scope of another thread leaves the handler alone, and a wait there is a plain one."""
    handlers = []

    def work() -> None:
        with interrupts.deferred():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert handlers == [signal.default_int_handler]


def test_a_foreign_handler_is_left_alone(monkeypatch):
    """Whoever has a handler of their own keeps it; so do those who ignore interrupts."""
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with interrupts.deferred():
            interrupt()
            interrupts.check()
    finally:
        signal.signal(signal.SIGINT, before)

    assert seen == [1]
