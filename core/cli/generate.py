"""`neve generate`: complete one prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from .loaded import load_model
from .options import (
    json_option,
    model_argument,
    sampling_fields,
    sampling_options,
    settings_option,
    verbose_option,
)
from .output import note, summary, write_json, write_piece
from .prompt import check_system, messages, read_prompt

if TYPE_CHECKING:
    from ..engine.completion import Completion
    from ..engine.handles import Handle
    from ..model import Prompt

# \b keeps click from joining the lines
_EXAMPLES = """\b
Examples:
  neve generate Qwen/Qwen3-0.6B "Once upon a time" --max-tokens 40
  neve generate Qwen/Qwen3-0.6B --chat "Name three rivers." --json
  neve generate Qwen/Qwen3-0.6B --set max_context=4096 < story.txt
"""


def _stream(handle: Handle) -> None:
    try:
        for piece in handle:
            write_piece(piece.text)
    finally:
        click.echo()


def _as_dict(completion: Completion) -> dict[str, Any]:
    fields = attrs.asdict(completion)
    if not completion.logprobs:
        del fields["logprobs"]
    return fields


def _run(
    handle: Handle, *, stream: bool, as_json: bool, max_tokens: int, max_context: int
) -> None:
    """Write the answer."""
    if stream and not as_json:
        _stream(handle)
    completion = handle.result()
    if as_json:
        write_json(_as_dict(completion))
        return
    if not stream:
        click.echo(completion.text, color=True)
    note(summary(completion, max_tokens=max_tokens, max_context=max_context))


@click.command(epilog=_EXAMPLES)
@model_argument
@click.argument("prompt", required=False)
@click.option(
    "--chat/--raw",
    default=False,
    help="Send PROMPT as a user's message, or complete it as it stands [default: --raw].",
)
@click.option("--system", metavar="TEXT", help="System message; needs --chat.")
@sampling_options(max_tokens=256)
@click.option(
    "--logprobs",
    type=int,
    metavar="N",
    help="Report the N likeliest tokens at every position; needs --json.",
)
@click.option("--stream/--no-stream", default=True, help="Write the text as it comes.")
@json_option
@settings_option
@verbose_option
def generate(
    model: str,
    prompt: str | None,
    chat: bool,
    system: str | None,
    stream: bool,
    as_json: bool,
    settings: dict[str, Any],
    **sampling: Any,
) -> None:
    """Complete PROMPT, or stdin if it is - or missing.

    The text goes to stdout, a line of figures to stderr. Ctrl-C ends the request.
    """
    check_system(system, chat=chat)
    if sampling["logprobs"] and not as_json:
        raise click.UsageError("--logprobs needs --json: there is no other place for them")
    fields = sampling_fields(sampling)
    text = read_prompt(prompt)
    asked: Prompt = messages(text, system) if chat else text
    with load_model(model, settings) as loaded:
        _run(
            loaded.submit(asked, **fields),
            stream=stream,
            as_json=as_json,
            max_tokens=fields["max_tokens"],
            max_context=loaded.info.max_context,
        )
