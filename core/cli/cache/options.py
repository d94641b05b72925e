"""What the subcommands of `neve cache` share: options, the store, and how figures look."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ... import interrupts
from ..options import F, json_option

if TYPE_CHECKING:
    from ...coldtier.inspection.handle import ColdStoreHandle
    from ...ids import Fingerprint

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = ("", "k", "m", "g", "t")
_UNITS = ("B", "KiB", "MiB", "GiB")
_DIGITS = 12  # of a digest, where people look at it

Progress = Callable[[int, int], None]


def store_options(command: F) -> F:
    """Add --dir and --json to a command."""
    folder = click.option(
        "--dir",
        "folder",
        metavar="FOLDER",
        help="The setting cold_cache_dir, or the store itself.",
    )
    return folder(json_option(command))


model_prefix_option = click.option(
    "--model",
    "model_prefix",
    metavar="PREFIX",
    help="Only objects of the model whose fingerprint begins so.",
)


def open_store(folder: str | None, *, create: bool = False) -> ColdStoreHandle:
    """Open the store that --dir, or without it the environment, names.

    Raises:
        NeveError: As `neve.cold_store`.
    """
    from ...coldtier.inspection.handle import cold_store

    return cold_store(folder, create=create)


@contextmanager
def model_hint() -> Generator[None]:
    """Turn an unknown fingerprint into wrong input."""
    from ...errors import UnknownModelError

    try:
        yield
    except UnknownModelError as error:
        raise click.BadParameter(str(error)) from error


def parse_size(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Return the bytes that a text such as `500MB` or `1.5GiB` stands for."""
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise click.BadParameter(f"{text!r} is no size: write 500MB, 10GB or 1.5GiB")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** _POWERS.index(match[2].lower()))


def size_text(num_bytes: int) -> str:
    """Return a size for people."""
    power = min((max(num_bytes, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{num_bytes / 1024**power:.{1 if power else 0}f} {_UNITS[power]}"


def time_text(stamp_ns: int | None) -> str | None:
    """Return a time of the day, in UTC and to the second; None without one."""
    if stamp_ns is None:
        return None
    try:
        moment = datetime.fromtimestamp(stamp_ns // 10**9, UTC)
    except (ValueError, OverflowError, OSError):  # the clock of a file system says anything
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def model_text(model: Fingerprint | None) -> str:
    """Return a model's name for people."""
    return "unreadable" if model is None else model.hex()[:_DIGITS]


def key_text(key: bytes) -> str:
    """Return an object's name for people."""
    return key.hex()[:_DIGITS]


def count_text(num: int, noun: str) -> str:
    """Return a number of things."""
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"


@contextmanager
def progress_bar(label: str) -> Generator[Progress]:
    """Show how many bytes are done, to whoever waits at a terminal.

    Yields:
        What to tell how many are done, and of how many.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with (
        interrupts.deferred(),  # the bar has hidden the cursor
        Bar(console=console, transient=True, disable=not sys.stderr.isatty()) as bar,
    ):
        task = bar.add_task(label, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            interrupts.check()

        yield show
