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


def summary(
    completion: Completion, *, max_tokens: int | None = None, max_context: int | None = None
) -> str:
    """Return the figures of a request in one line.

    Args:
        completion: The request's.
        max_tokens: Tokens that it asked for; None means as many as fit.
        max_context: Positions of the model; None means that the limit is not told apart.
    """
    usage, rate = completion.usage, decode_rate(completion)
    telling = rate is not None and usage.completion_tokens >= _TELLING_TOKENS
    speed = f" at {rate:.1f}/s" if telling else ""
    parts = (
        f"prompt {usage.prompt_tokens} tokens, {_found(completion)}",
        f"first token after {milliseconds(completion.timings.ttft_ms)}",
        f"{usage.completion_tokens} tokens{speed}",
        _ending(completion, max_tokens, max_context),
    )
    return " · ".join(parts)


def _found(completion: Completion) -> str:
    """Return how much of a prompt was found, and where."""
    report = completion.cache_report
    if not report.restored_tokens:
        return f"{report.hot_tokens} of them from memory"
    return f"{report.hot_tokens} of them from memory, {report.restored_tokens} from disk"


def _ending(completion: Completion, max_tokens: int | None, max_context: int | None) -> str:
    """Return why an answer ended; the engine clamps what is asked for to what fits."""
    if completion.finish_reason != "length":
        return "ended by itself"
    usage = completion.usage
    if max_context is None or usage.completion_tokens == max_tokens:
        return "cut at the token limit"
    # the last token is never computed, so it takes no position
    is_full = usage.prompt_tokens + usage.completion_tokens > max_context
    return f"cut where the {'context' if is_full else 'cache'} is full"
