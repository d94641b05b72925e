"""The prompt that a command is given: as an argument, or on stdin."""

from __future__ import annotations

import sys

import click


def check_system(system: str | None, *, chat: bool) -> None:
    """Refuse a system message for a raw prompt.

    Raises:
        click.UsageError: There is one.
    """
    if system is not None and not chat:
        raise click.UsageError("--system needs --chat: a raw prompt has no system message")


def read_prompt(given: str | None) -> str:
    """Return the prompt, from stdin if it is - or missing.

    Raises:
        click.UsageError: There is none, or it is not UTF-8.
    """
    if given is not None and given != "-":
        return given
    if given is None and sys.stdin.isatty():
        raise click.UsageError("there is no prompt: give one as PROMPT, or pipe it in")
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the prompt on stdin is not UTF-8: {error}") from error
    # the last line break belongs to the file
    return text.removesuffix("\n").removesuffix("\r")


def messages(text: str, system: str | None) -> list[dict[str, str]]:
    """Return a chat of one user's message, behind a system message if there is one."""
    user = {"role": "user", "content": text}
    return [user] if system is None else [{"role": "system", "content": system}, user]
