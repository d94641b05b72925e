"""How results are written: to people, to a pipe, to a program."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..engine.completion import Completion

_PIPE_WIDTH = 160
_TELLING_TOKENS = 8  # steps overlap: the speed of fewer is that of their delivery


def console() -> Console:
    """Return a console on stdout that takes text as it stands.

    Lines of a pipe are wider than those of a terminal, since nobody wraps them by eye.
    """
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=False)


def table(*columns: str) -> Table:
    """Return an empty table in the style of all commands; long cells fold."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def heading(out: Console, number: int, title: str) -> None:
    """Write the title of a numbered part."""
    out.print(f"\n{number} · {title}\n", style="bold cyan")


def write_json(value: Any) -> None:
    """Write one JSON object on one line."""
    click.echo(json.dumps(_numbers(value), ensure_ascii=False, allow_nan=False))


def _numbers(value: Any) -> Any:
    """Return plain data with null for each NaN and infinity, which JSON cannot say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in cast("Sequence[Any]", value)]
    return value


def write_piece(text: str, *, dim: bool = False) -> None:
    """Write a part of a line at once, unchanged but for its colour."""
    click.echo(click.style(text, dim=True) if dim else text, nl=False, color=True)


def note(sentence: str) -> None:
    """Write a remark about a result, beside it: on stderr."""
    click.secho(sentence, err=True, dim=True)


def decode_rate(completion: Completion) -> float | None:
    """Return tokens a second after the first one, None if there was but one."""
    decode_ms = completion.timings.total_ms - completion.timings.ttft_ms
    num_tokens = completion.usage.completion_tokens - 1
    return num_tokens / decode_ms * 1e3 if num_tokens and decode_ms else None


def milliseconds(value: float) -> str:
    """Return a duration for people."""
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1e3:.1f} s"


def summary(completion: Completion) -> str:
    """Return the figures of a request in one line."""
    usage, rate = completion.usage, decode_rate(completion)
    telling = rate is not None and usage.completion_tokens >= _TELLING_TOKENS
    speed = f" at {rate:.1f}/s" if telling else ""
    parts = (
        f"prompt {usage.prompt_tokens} tokens, {usage.cached_tokens} of them cached",
        f"first token after {milliseconds(completion.timings.ttft_ms)}",
        f"{usage.completion_tokens} tokens{speed}",
        "cut at the token limit" if completion.finish_reason == "length" else "ended by itself",
    )
    return " · ".join(parts)
