"""Options that commands share."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ..errors import InvalidSamplingError
from ..log import configure

F = TypeVar("F", bound=Callable[..., Any])


VERBOSE = "neve.verbose"
"""Key in the root context's `meta`: whether --verbose was given."""


def _set_level(ctx: click.Context, _: click.Parameter, verbose: bool) -> None:
    # the program sets the level, a command's own flag may lower it
    if verbose:
        ctx.find_root().meta[VERBOSE] = True
    if verbose or ctx.parent is None:
        configure(logging.INFO if verbose else logging.WARNING)


verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_set_level,
    help="Log what happens to stderr.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")

model_argument = click.argument("model")


def _only_json(text: str) -> Any:
    raise ValueError(text)


def _value(text: str) -> Any:
    """Return what JSON makes of a text, and the text itself if it is no JSON."""
    try:
        return json.loads(text, parse_constant=_only_json)
    except ValueError:
        return text


def _settings(_: click.Context, __: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{pair!r} is not of the form KEY=VALUE")
        settings[key] = _value(text)
    return settings


settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_settings,
    help="Any setting, e.g. max_num_seqs=4; may be repeated.",
)

_SAMPLING_OPTIONS = (
    click.option(
        "--temperature",
        type=float,
        help="Divides the logits; 0 takes the likeliest token.  [default: 0]",
    ),
    click.option(
        "--top-p",
        type=float,
        help="Keep the likeliest tokens that sum up to this.  [default: 1]",
    ),
    click.option("--top-k", type=int, help="Keep this many tokens; 0 keeps all.  [default: 0]"),
    click.option(
        "--min-p",
        type=float,
        help="Drop tokens less likely than this share of the likeliest.  [default: 0]",
    ),
    click.option("--seed", type=click.IntRange(0), help="Makes sampled answers repeatable."),
    click.option(
        "--stop", multiple=True, metavar="TEXT", help="Ends an answer; may be repeated."
    ),
)


def sampling_options(*, max_tokens: int) -> Callable[[F], F]:
    """Return a decorator that adds the options of `sampling_fields` to a command.

    Args:
        max_tokens: Default of the longest answer.
    """
    length = click.option(
        "--max-tokens",
        type=click.IntRange(1),
        default=max_tokens,
        show_default=True,
        help="Most tokens of an answer.",
    )

    def decorate(command: F) -> F:
        for option in reversed((length, *_SAMPLING_OPTIONS)):
            command = option(command)
        return command

    return decorate


def sampling_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `SamplingParams` fields that were given, checked before a model is loaded.

    Raises:
        click.BadParameter: A value is out of range.
    """
    from ..sampling.params import SamplingParams

    given = {name: value for name, value in options.items() if value not in (None, ())}
    try:
        SamplingParams(**given)
    except InvalidSamplingError as error:
        flag = f"'--{error.param}'".replace("_", "-")
        raise click.BadParameter(
            f"must be {error.expected}, got {error.got!r}", param_hint=flag
        ) from error
    return given
