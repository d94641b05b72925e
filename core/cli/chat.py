"""`neve chat`: talk to a model."""

from __future__ import annotations

import sys
from typing import Any

import click

from .loaded import describe, load_model
from .options import (
    model_argument,
    sampling_fields,
    sampling_options,
    settings_option,
    verbose_option,
)
from .output import note
from .repl import Repl

_MAX_TOKENS = 1024  # room for a reasoning part


@click.command()
@model_argument
@click.option("--system", metavar="TEXT", help="System message.")
@sampling_options(max_tokens=_MAX_TOKENS)
@settings_option
@verbose_option
def chat(model: str, system: str | None, settings: dict[str, Any], **sampling: Any) -> None:
    """Talk to MODEL, turn by turn.

    Answers go to stdout, figures to stderr; a reasoning part is dim. A backslash at the end
    of a line continues the message. Ctrl-C stops an answer, a second one leaves. Without a
    terminal every line of stdin is a message.

    Commands: /reset, /system TEXT, /stats, /help, /exit.
    """
    fields = sampling_fields(sampling)
    with load_model(model, settings) as loaded:
        if sys.stdin.isatty():
            note(f"{describe(loaded)}\n/help lists the commands")
        Repl(loaded, system, fields).run()
