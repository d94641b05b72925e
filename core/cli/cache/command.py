"""`neve cache`: look at the store of cold objects, and keep it in order."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import click

from ...errors import NeveError
from ..output import console, table, write_json
from .care import clear, prune, verify
from .explain import explain
from .options import (
    count_text,
    key_text,
    model_hint,
    model_prefix_option,
    model_text,
    open_store,
    size_text,
    store_options,
    time_text,
)
from .transfer import export, import_

if TYPE_CHECKING:
    from rich.console import Console

    from ...coldtier.inspection.listing import Amount, ObjectEntry, StoreStats
    from ...ids import Fingerprint

_SHOWN = 20


class _Commands(click.Group):
    """Commands that end with a sentence if the disk does not do its part."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if isinstance(error, NeveError) or error.errno == errno.EPIPE:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands)
def cache() -> None:
    """Look at the prefixes on disk, and keep them in order.

    No model is loaded, and engines may use the store meanwhile.
    """


# -- ls ------------------------------------------------------------------------------------


def _by_model(entries: list[ObjectEntry]) -> dict[Fingerprint | None, list[ObjectEntry]]:
    models: dict[Fingerprint | None, list[ObjectEntry]] = {}
    for entry in entries:
        models.setdefault(entry.model, []).append(entry)
    return models


def _entry_dict(entry: ObjectEntry) -> dict[str, Any]:
    return {
        "key": entry.name.key.hex(),
        "group": entry.name.group.value,
        "bytes": entry.num_bytes,
        "last_use": time_text(entry.used_ns),
        "tokens": entry.num_tokens,
    }


def _model_dict(
    model: Fingerprint | None, entries: list[ObjectEntry], limit: int | None
) -> dict[str, Any]:
    return {
        "model": None if model is None else model.hex(),
        "num_objects": len(entries),
        "bytes": sum(entry.num_bytes for entry in entries),
        "objects": [_entry_dict(entry) for entry in entries[:limit]],
    }


def _print_model(
    out: Console, model: Fingerprint | None, entries: list[ObjectEntry], limit: int
) -> None:
    amount = size_text(sum(entry.num_bytes for entry in entries))
    out.print(f"\nmodel {model_text(model)} · {count_text(len(entries), 'object')}, {amount}")
    shown = table("object", "group", "tokens", "size", "last use")
    for entry in entries[:limit]:
        tokens = "-" if entry.num_tokens is None else str(entry.num_tokens)
        size, used = size_text(entry.num_bytes), time_text(entry.used_ns) or "-"
        shown.add_row(key_text(entry.name.key), entry.name.group.value, tokens, size, used)
    if shown.row_count:
        out.print(shown)
    if len(entries) > limit:
        out.print(f"and {len(entries) - limit} more", style="dim")


@cache.command()
@model_prefix_option
@click.option(
    "--limit",
    type=click.IntRange(0),
    metavar="N",
    help=f"Objects shown of each model.  [default: {_SHOWN}; all with --json]",
)
@store_options
def ls(model_prefix: str | None, limit: int | None, folder: str | None, as_json: bool) -> None:
    """List the objects by model, the most recently used first."""
    with open_store(folder) as store, model_hint():
        root, entries = store.root, store.objects(model_prefix)
    models = _by_model(entries)
    if as_json:
        listed = [_model_dict(model, found, limit) for model, found in models.items()]
        write_json({"root": str(root), "models": listed})
        return
    out = console()
    out.print(f"{root}: {count_text(len(entries), 'object')}", soft_wrap=True)
    for model, found in models.items():
        _print_model(out, model, found, _SHOWN if limit is None else limit)


# -- stats ---------------------------------------------------------------------------------


def _amount_dict(amount: Amount) -> dict[str, int]:
    return {"objects": amount.num_objects, "bytes": amount.num_bytes}


def _stats_dict(stats: StoreStats) -> dict[str, Any]:
    return {
        "root": str(stats.root),
        "objects": stats.usage.num_objects,
        "bytes": stats.usage.num_bytes,
        "quota_bytes": stats.usage.quota_bytes,
        "free_bytes": stats.usage.free_bytes,
        "written_today_bytes": stats.usage.written_today_bytes,
        "oldest_use": time_text(stats.oldest_ns),
        "newest_use": time_text(stats.newest_ns),
        "by_group": {group.value: _amount_dict(a) for group, a in stats.groups.items()},
        "by_model": [
            {"model": None if model is None else model.hex(), **_amount_dict(amount)}
            for model, amount in stats.models.items()
        ],
    }


def _print_stats(stats: StoreStats) -> None:
    usage, out = stats.usage, console()
    out.print(str(stats.root), soft_wrap=True)
    figures = table("what", "how much")
    for what, text in (
        ("objects", str(usage.num_objects)),
        ("size", f"{size_text(usage.num_bytes)} of at most {size_text(usage.quota_bytes)}"),
        ("free on the disk", size_text(usage.free_bytes)),
        ("written today", size_text(usage.written_today_bytes)),
        ("oldest use", time_text(stats.oldest_ns) or "-"),
        ("newest use", time_text(stats.newest_ns) or "-"),
    ):
        figures.add_row(what, text)
    out.print(figures)
    groups = {group.value: amount for group, amount in stats.groups.items()}
    models = {model_text(model): amount for model, amount in stats.models.items()}
    for kind, amounts in (("group", groups), ("model", models)):
        shown = table(kind, "objects", "size")
        for name, amount in amounts.items():
            shown.add_row(name, str(amount.num_objects), size_text(amount.num_bytes))
        if amounts:
            out.print()
            out.print(shown)


@cache.command()
@store_options
def stats(folder: str | None, as_json: bool) -> None:
    """Show what the store takes and what it may, by group and by model."""
    with open_store(folder) as store:
        found = store.stats()
    if as_json:
        write_json(_stats_dict(found))
    else:
        _print_stats(found)


for _command in (verify, explain, prune, clear, export, import_):
    cache.add_command(_command)
