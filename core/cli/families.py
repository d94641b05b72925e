"""`neve families`: list the installed families."""

from __future__ import annotations

import attrs
import click

from .options import json_option
from .output import console, table, write_json
from .plugins import PluginRow, plugin_rows


def _print(rows: list[PluginRow]) -> None:
    out = console()
    if not rows:
        out.print("No family plugin is installed: try pip install neve-qwen3")
        return
    shown = table("family", "version", "distribution", "model types", "cold restore")
    for row in rows:
        cells = (row.version, row.distribution, ", ".join(row.model_types), row.cold_restore)
        if row.fault is None:
            shown.add_row(row.name, *(cell or "-" for cell in cells))
    if shown.row_count:
        out.print(shown)
    for row in rows:
        if row.fault is not None:
            out.print(f"broken: {row.name}: {row.fault}", style="red")


@click.command()
@json_option
@click.pass_context
def families(ctx: click.Context, as_json: bool) -> None:
    """List the installed model families, and plugins that are broken.

    The exit code is 1 if one is broken.
    """
    rows = plugin_rows()
    if as_json:
        write_json({"families": [attrs.asdict(row) for row in rows]})
    else:
        _print(rows)
    ctx.exit(1 if any(row.fault for row in rows) else 0)
