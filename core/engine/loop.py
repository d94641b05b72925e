"""The engine thread's loop: commands, disk, one step; until it is told to close."""

from __future__ import annotations

import queue
from typing import Any

from ..errors import ContextLengthExceededError, EngineClosedError
from ..sampling.sampler import RowState
from ..scheduler.request import Request
from .commands import Call, Cancel, Close, Submit
from .core import Core
from .jobs import Job, Jobs
from .output import RequestOutput
from .stepper import Stepper

RESTORE_WAIT_S = 0.002
"""How long the engine sleeps at most before it looks for commands, while the disk works."""


class Loop:
    """Runs on the engine thread until it is told to close."""

    def __init__(self, core: Core, commands: queue.SimpleQueue[Any]) -> None:
        self._core = core
        self._commands = commands
        self._scheduler = core.scheduler
        self._cold = core.cold
        self._jobs = Jobs(core)
        self._stepper = Stepper(core, self._jobs)
        self._closing = False

    def run(self) -> None:
        """Serve until closed; whatever still runs then fails."""
        try:
            while not self._closing:
                self._serve_commands()
                self._tend_cold()
                self._stepper.step()
        finally:
            for job in self._jobs:
                self._jobs.fail(job, EngineClosedError("the model was closed"))
            if self._cold is not None:
                self._cold.close()
            self._core.journal.close()

    # -- commands --------------------------------------------------------------------------

    def _serve_commands(self) -> None:
        """Serve what has arrived; wait for an arrival if there is nothing else to do."""
        idle = self._is_idle
        while True:
            try:
                command = self._commands.get(idle, self._patience_s if idle else None)
            except queue.Empty:
                return
            self._serve(command)
            idle = False

    @property
    def _is_idle(self) -> bool:
        return self._scheduler.is_idle and not self._stepper.in_flight

    @property
    def _patience_s(self) -> float | None:
        """How long an idle engine may wait for a command; None for ever."""
        return self._cold.captures.patience_s if self._cold is not None else None

    def _tend_cold(self) -> None:
        """Write on behind requests that have ended; wait for the disk if all others do."""
        if self._cold is None:
            return
        self._cold.captures.work(idle=self._is_idle)
        if not self._stepper.in_flight and self._scheduler.only_restores:
            self._cold.restores.wait(RESTORE_WAIT_S)

    def _serve(self, command: Submit | Cancel | Call | Close) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Cancel(request_id):
                self._jobs.cancel(request_id)
            case Call():
                self._call(command)
            case Close():
                self._closing = True

    def _submit(self, command: Submit) -> None:
        params, handle = command.params, command.handle
        limit = params.max_tokens if params.max_tokens is not None else 2**31
        request = Request(
            handle.id,
            list(command.prompt.tokens),
            limit,
            command.salt,
            command.prompt.extra_keys(self._core.info.settings.cache.paged_block_size),
            command.owner,
        )
        try:
            self._scheduler.submit(request)
        except ContextLengthExceededError as error:
            handle._fail(error)
            return
        state = RowState.create(
            params, vocab_size=self._core.info.vocab_size, prompt_tokens=command.prompt.tokens
        )
        info = self._core.info
        output = RequestOutput(info.tokenizer, info.eos_token_ids, params, request.max_tokens)
        self._jobs.add(Job(request, handle, state, output, command.submitted_at))

    def _call(self, command: Call) -> None:
        try:
            command.future.set_result(command.function(self._core))
        except Exception as error:  # noqa: BLE001  it belongs to whoever asked
            command.future.set_exception(error)
