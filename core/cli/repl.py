"""The loop behind `neve chat`: read, answer, remember."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from .. import interrupts
from ..errors import NeveError
from .output import note, summary, write_piece
from .reasoning import ReasoningStream

if TYPE_CHECKING:
    from ..engine.completion import Completion
    from ..engine.handles import Handle
    from ..model import Model

_COMMAND = re.compile(r"/(\w+)(?:\s+(.*))?", re.DOTALL)
_PROMPT, _CONTINUED = "> ", ". "
_HELP = """\
/reset        forget the conversation, keep the system message
/system TEXT  begin a new conversation under this system message
/stats        show the model's figures
/help         show this list
/exit         leave; so does Ctrl-D
A backslash at the end of a line continues the message on the next one."""


class Repl:
    """A conversation with whoever writes to stdin."""

    def __init__(self, model: Model, system: str | None, fields: Mapping[str, Any]) -> None:
        self._model = model
        self._fields = fields
        self._system = system
        self._chat = model.chat(system)
        self._commands: dict[str, Callable[[str], None]] = {
            "reset": self._reset,
            "system": self._set_system,
            "stats": self._show_stats,
            "help": lambda _: note(_HELP),
        }
        self._interactive = sys.stdin.isatty() and sys.stdout.isatty()

    def run(self) -> None:
        """Answer until the input ends or says /exit.

        Raises:
            NeveError: A turn failed, and nobody is there to try another.
            KeyboardInterrupt: Two interruptions in a row, or one where nobody is there.
        """
        self._enable_line_editing()
        interrupted = False
        while True:
            try:
                message = self._read_message()
                if message.strip() == "/exit":
                    return
                interrupted = False
                self._serve(message)
            except EOFError:
                if self._interactive:
                    click.echo()
                return
            except KeyboardInterrupt:
                if interrupted or not self._interactive:
                    raise
                interrupted = True
                note("\ninterrupted; Ctrl-C again leaves")

    def _enable_line_editing(self) -> None:
        if self._interactive:
            with contextlib.suppress(ImportError):  # not every Python was built with it
                import_module("readline")  # from then on `input` edits lines

    # -- input -----------------------------------------------------------------------------

    def _read_message(self) -> str:
        lines: list[str] = []
        while True:
            try:
                line = self._read_line(_CONTINUED if lines else _PROMPT)
            except EOFError:
                if not lines:
                    raise
                return "\n".join(lines)
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _read_line(self, prompt: str) -> str:
        if self._interactive:
            with interrupts.allowed():
                return input(prompt)
        try:
            with interrupts.allowed():
                line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise click.UsageError(f"stdin is not UTF-8: {error}") from error
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    # -- answers ---------------------------------------------------------------------------

    def _serve(self, message: str) -> None:
        command = _COMMAND.fullmatch(message.strip())
        try:
            if command is not None:
                self._obey(command[1], command[2] or "")
            elif message.strip():
                self._answer(message)
        except NeveError as error:
            if not self._interactive:
                raise
            click.secho(f"Error: {error}", err=True, fg="red")

    def _answer(self, message: str) -> None:
        messages = [*self._chat.messages, {"role": "user", "content": message}]
        ids = self._model.encode(messages)
        handle = self._model.submit(ids, **self._fields)
        try:
            completion = self._write(handle, self._reasoning_stream(ids))
        finally:
            handle.cancel()
        self._chat.remember(messages, completion)
        max_context = self._model.info.max_context
        limit = self._fields.get("max_tokens")
        note(summary(completion, max_tokens=limit, max_context=max_context))

    def _reasoning_stream(self, ids: list[int]) -> ReasoningStream:
        marks = self._model.info.protocol.reasoning
        end = self._model.tokenizer.decode(ids[-8:], skip_special_tokens=False).rstrip()
        return ReasoningStream(marks, inside=marks is not None and end.endswith(marks[0]))

    def _write(self, handle: Handle, reasoning: ReasoningStream) -> Completion:
        for piece in handle:
            self._write_parts(reasoning.add(piece.text))
        self._write_parts(reasoning.finish())
        click.echo()
        return handle.result()

    def _write_parts(self, parts: list[tuple[str, bool]]) -> None:
        for text, is_reasoning in parts:
            write_piece(text, dim=is_reasoning and sys.stdout.isatty())

    # -- commands --------------------------------------------------------------------------

    def _obey(self, name: str, argument: str) -> None:
        command = self._commands.get(name)
        if command is None:
            known = ", ".join(f"/{name}" for name in (*self._commands, "exit"))
            note(f"there is no command /{name} (known: {known})")
            return
        command(argument)

    def _reset(self, _: str) -> None:
        self._chat = self._model.chat(self._system)
        note("a new conversation")

    def _set_system(self, text: str) -> None:
        if not text:
            note(f"the system message is: {self._system or 'none'}")
            return
        self._system = text
        self._reset("")

    def _show_stats(self, _: str) -> None:
        stats = self._model.stats()
        note(f"requests    {stats.scheduler.completed} finished")
        if stats.pools is not None:
            note(f"cache       {stats.pools.prefix_hit_tokens} prompt tokens were found in it")
            for index, group in enumerate(stats.pools.groups):
                note(
                    f"blocks      group {index}: {group.kind}, {group.num_evictable} kept, "
                    f"{group.num_live} in use, {group.num_free} free"
                )
        memory = {name: num_bytes / 2**20 for name, num_bytes in stats.memory.items()}
        note(f"memory      {memory['active']:.0f} MiB, at most {memory['peak']:.0f} MiB so far")
