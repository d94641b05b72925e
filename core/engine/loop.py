"""The engine thread's loop: serve commands, advance the cold tier, run one step."""

from __future__ import annotations

import queue
from typing import Any

from ..sampling.sampler import RowState
from ..scheduler.request import Request
from .commands import Call, Cancel, Close, Submit
from .core import Core
from .endings import closed, request_error, run_all
from .faults import Faults
from .jobs import Job, Jobs
from .output import RequestOutput
from .stepper import Stepper

RESTORE_WAIT_S = 0.002
"""Most seconds that the loop sleeps between reads of commands while requests restore."""


class Loop:
    """Runs on the engine thread until a `Close` command."""

    def __init__(
        self, core: Core, commands: queue.SimpleQueue[Any], faults: Faults | None = None
    ) -> None:
        self._core = core
        self._faults = faults or Faults()
        self._commands = commands
        self._scheduler = core.scheduler
        self._cold = core.cold
        self._jobs = Jobs(core, self._faults)
        self._stepper = Stepper(core, self._jobs)
        self._closing = False

    def run(self) -> None:
        """Run until closed. Then unfinished requests fail, and all parts are closed."""
        fault: BaseException | None = None
        try:
            while not self._closing:
                self._serve_commands()
                self._tend_cold()
                self._stepper.step()
        except BaseException as error:
            fault = error
            raise
        finally:
            for job in self._jobs:
                self._jobs.fail(job, closed(fault))
            cold = () if self._cold is None else (self._cold.close,)
            run_all((*cold, self._core.journal.close), self._faults)

    # -- commands --------------------------------------------------------------------------

    def _serve_commands(self) -> None:
        """Serve the queued commands; an idle loop waits for the first one."""
        idle = self._is_idle
        while True:
            try:
                command = self._commands.get(idle, self._patience_s if idle else None)
            except queue.Empty:
                return
            with self._faults.contain("request"):
                self._serve(command)
            idle = False

    @property
    def _is_idle(self) -> bool:
        return self._scheduler.is_idle and not self._stepper.in_flight

    @property
    def _patience_s(self) -> float | None:
        """Seconds that an idle loop may wait for a command; None: no limit."""
        return self._cold.captures.patience_s if self._cold is not None else None

    def _tend_cold(self) -> None:
        """Advance captures, and wait for the disk if every admitted request is restoring."""
        if self._cold is None:
            return
        try:
            self._cold.captures.work(idle=self._is_idle)
        except Exception as error:  # noqa: BLE001  answers do not depend on captures
            self._faults.count("cold", error)
            self._cold.captures.give_up()
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
        try:
            self._accept(command)
        except BaseException as error:  # noqa: BLE001  the error ends this request only
            for request in self._scheduler.requests:
                if request.id == command.handle.id:
                    self._scheduler.finish(request)
            command.handle._fail(request_error(error))

    def _accept(self, command: Submit) -> None:
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
        state = RowState.create(
            params, vocab_size=self._core.info.vocab_size, prompt_tokens=command.prompt.tokens
        )
        info = self._core.info
        self._scheduler.submit(request)  # clamps `request.max_tokens`
        output = RequestOutput(info.tokenizer, info.eos_token_ids, params, request.max_tokens)
        self._jobs.add(Job(request, handle, state, output, command.submitted_at))

    def _call(self, command: Call) -> None:
        try:
            command.future.set_result(command.function(self._core))
        except BaseException as error:  # noqa: BLE001  raised again in the calling thread
            command.future.set_exception(error)
