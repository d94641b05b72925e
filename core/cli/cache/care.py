"""`neve cache verify`, `prune` and `clear`: what changes a store, or may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..output import console, table, write_json
from .options import (
    count_text,
    key_text,
    model_hint,
    model_prefix_option,
    open_store,
    parse_size,
    progress_bar,
    size_text,
    store_options,
)

if TYPE_CHECKING:
    from ...coldtier.inspection.handle import ColdStoreHandle
    from ...coldtier.inspection.verification import UnsoundObject, Verification

# -- verify --------------------------------------------------------------------------------


def _unsound_dict(found: UnsoundObject) -> dict[str, Any]:
    return {
        "key": found.name.key.hex(),
        "group": found.name.group.value,
        "bytes": found.num_bytes,
        "cause": found.cause,
        "reason": found.reason,
        "removed": found.removed,
    }


def _print_verification(done: Verification) -> None:
    out = console()
    amount = f"{count_text(done.num_objects, 'object')}, {size_text(done.num_bytes)}"
    if not done.unsound:
        out.print(f"{amount}: all are sound")
        return
    shown = table("object", "group", "what is wrong", "removed")
    for found in done.unsound:
        removed = "yes" if found.removed else "no"
        shown.add_row(key_text(found.name.key), found.name.group.value, found.reason, removed)
    out.print(shown)
    out.print(f"{amount}: {len(done.unsound)} unsound", style="red")


@click.command()
@click.option(
    "--jobs", type=click.IntRange(1, 64), metavar="N", help="Threads  [default: one a core]"
)
@click.option("--prune", "remove", is_flag=True, help="Remove what is unsound.")
@store_options
@click.pass_context
def verify(
    ctx: click.Context, jobs: int | None, remove: bool, folder: str | None, as_json: bool
) -> None:
    """Read every object in full and check that it is whole.

    The exit code is 1 if one is not. Nothing breaks by it: an engine checks what it reads,
    removes what is unsound and computes instead.
    """
    with open_store(folder) as store, progress_bar("verifying") as progress:
        done = store.verify(jobs=jobs, prune=remove, progress=progress)
    if as_json:
        unsound = [_unsound_dict(found) for found in done.unsound]
        write_json({"objects": done.num_objects, "bytes": done.num_bytes, "unsound": unsound})
    else:
        _print_verification(done)
    ctx.exit(1 if done.unsound else 0)


# -- prune ---------------------------------------------------------------------------------


def _target_bytes(
    store: ColdStoreHandle, to_bytes: int | None, to_percent: float | None
) -> int:
    if to_bytes is not None:
        return to_bytes
    return int(store.quota_bytes * (to_percent or 0) / 100)


@click.command()
@click.option(
    "--to",
    "to_bytes",
    metavar="SIZE",
    callback=parse_size,
    help="What may stay, e.g. 10GB or 500MiB.",
)
@click.option(
    "--to-percent",
    type=click.FloatRange(0, 100),
    metavar="P",
    help="What may stay, in percent of the quota.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@store_options
def prune(
    to_bytes: int | None,
    to_percent: float | None,
    dry_run: bool,
    folder: str | None,
    as_json: bool,
) -> None:
    """Remove the least recently used objects.

    As many as it takes until the rest is small enough.
    """
    if (to_bytes is None) == (to_percent is None):
        raise click.UsageError("give one of --to and --to-percent")
    with open_store(folder) as store:
        target_bytes = _target_bytes(store, to_bytes, to_percent)
        gone = store.prune(target_bytes, dry_run=dry_run)
    num_bytes = sum(info.num_bytes for info in gone)
    if as_json:
        report = {"objects": len(gone), "bytes": num_bytes, "dry_run": dry_run}
        write_json({"target_bytes": target_bytes, **report})
        return
    done = "would remove" if dry_run else "removed"
    click.echo(f"{done} {count_text(len(gone), 'object')}, {size_text(num_bytes)}")


# -- clear ---------------------------------------------------------------------------------


def _confirm(store: ColdStoreHandle, model: str | None) -> None:
    found = store.objects(model)
    amount = size_text(sum(entry.num_bytes for entry in found))
    count = count_text(len(found), "object")
    click.confirm(f"Remove {count}, {amount}, from {store.root}?", abort=True, err=True)


@click.command()
@model_prefix_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_options
def clear(model_prefix: str | None, yes: bool, folder: str | None, as_json: bool) -> None:
    """Remove all objects, or those of one model."""
    with open_store(folder) as store, model_hint():
        if not yes:
            _confirm(store, model_prefix)
        num_removed = store.clear(model_prefix)
    if as_json:
        write_json({"objects": num_removed})
    else:
        click.echo(f"removed {count_text(num_removed, 'object')}")
