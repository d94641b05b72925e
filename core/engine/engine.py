"""The engine: one thread that owns every array of a model, and its thread-safe interface."""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import attrs
import mlx.core as mx

from .. import interrupts
from ..arguments import optional_text
from ..coldtier.admission.allowlist import PersistDecision
from ..contract.prompt import Prompt, text_prompt
from ..ids import SHARED_DOMAIN, RequestId, SaltDomain
from ..log import get_logger
from ..sampling.params import SamplingParams
from .commands import Call, Cancel, Close, Submit
from .core import Core, ModelInfo
from .endings import closed, said
from .faults import Faults
from .handles import Handle, forked
from .identification import Identification
from .loop import Loop

T = TypeVar("T")

_ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """A model's engine thread. Every method may be called from any thread.

    Attributes:
        faults: Counts of contained faults.
    """

    def __init__(self, make_core: Callable[[], Core]) -> None:
        """Start the thread and wait until the model is loaded on it.

        Args:
            make_core: Loads the model. Called on the engine thread, since an array belongs to
                the thread that made it.

        Raises:
            Exception: The error of `make_core`.
        """
        self._commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ids = itertools.count()
        self._process = os.getpid()
        self.faults = Faults()
        self._fault: BaseException | None = None
        self._identification: Identification | None = None
        self._closed = threading.Event()
        # held while a command is queued, so that no command is queued after the last read
        self._door = threading.Lock()
        loaded: Future[ModelInfo] = Future()
        self._thread = threading.Thread(
            target=self._main, args=(make_core, loaded), name="neve-engine", daemon=True
        )
        self._thread.start()
        try:
            self._info = interrupts.result(loaded)
        except BaseException:
            # wait for the thread: it still frees its MLX streams and may write files
            self.close()
            raise
        _ENGINES.add(self)

    @property
    def info(self) -> ModelInfo:
        """Facts about the model.

        `persistence` is off after the identification of the model has failed.
        """
        failure = self._identification and self._identification.failure
        if not failure:
            return self._info
        return attrs.evolve(self._info, persistence=PersistDecision(False, failure))

    def _main(self, make_core: Callable[[], Core], loaded: Future[ModelInfo]) -> None:
        try:
            self._serve(make_core, loaded)
        finally:
            self._shut()
            # the threads of MLX streams must end before the interpreter exits
            mx.clear_streams()

    def _serve(self, make_core: Callable[[], Core], loaded: Future[ModelInfo]) -> None:
        # the core is a local variable of this thread, so the thread's end frees its arrays
        try:
            core = make_core()
        except BaseException as error:  # noqa: BLE001  raised again in the thread that loads
            loaded.set_exception(error)
            return
        self._identification = None if core.cold is None else core.cold.identification
        loaded.set_result(core.info)
        try:
            Loop(core, self._commands, self.faults).run()
        except BaseException as error:  # noqa: BLE001  pending calls must fail, not hang
            self._fault = error
            get_logger("engine").error("engine.loop.failed", error=said(error))

    def _shut(self) -> None:
        with self._door:
            self._closed.set()
        while not self._commands.empty():
            with self.faults.contain("closing"):
                self._refuse(self._commands.get())

    def _refuse(self, command: Any) -> None:
        match command:
            case Submit(handle=handle):
                handle._fail(closed(self._fault))
            case Call(future=future):
                future.set_exception(closed(self._fault))
            case _:
                pass

    def _put(self, command: Any) -> None:
        # check first: another thread may have held the lock when the process was forked
        if self._is_forked:
            raise forked()
        with self._door:
            if self._closed.is_set():
                raise closed(self._fault)
            self._commands.put(command)

    def submit(
        self,
        prompt: Prompt | Sequence[int],
        params: SamplingParams,
        salt: SaltDomain = SHARED_DOMAIN,
        owner: str | None = None,
    ) -> Handle:
        """Queue a prompt.

        Args:
            prompt: The prompt, or its token ids, at least one.
            params: Sampling parameters.
            salt: Sharing domain.
            owner: The conversation of the request; None if it has no name.

        Raises:
            RequestError: The owner is not a string.
            EngineClosedError: The engine was closed, or has ended by a fault.
        """
        owner = optional_text("owner", owner) or ""
        handle = Handle(RequestId(next(self._ids)), self._cancel, self.faults)
        prompt = prompt if isinstance(prompt, Prompt) else text_prompt(prompt)
        now = time.perf_counter()
        self._put(Submit(handle, prompt, params, salt, now, owner))
        return handle

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process

    def _cancel(self, request_id: RequestId) -> None:
        if not self._closed.is_set():
            self._commands.put(Cancel(request_id))

    def call(self, function: Callable[[Core], T]) -> T:
        """Run `function` on the engine thread between two steps and return its result.

        Args:
            function: Takes the core, and must not keep a reference to it.

        Raises:
            EngineClosedError: The engine was closed, or has ended by a fault.
        """
        call = Call(function)
        self._put(call)
        return interrupts.result(call.future)

    def close(self) -> None:
        """End the loop and wait for its thread. Unfinished requests fail.

        Closing twice is harmless. In a forked process, nothing happens.
        """
        if self._is_forked:
            return
        if not self._closed.is_set():
            self._commands.put(Close())
        if threading.current_thread() is not self._thread:
            self._thread.join()


@atexit.register
def _close_all() -> None:
    """Stop every loop before the interpreter unloads MLX."""
    for engine in list(_ENGINES):
        engine.close()
