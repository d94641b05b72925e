"""`neve certify`: let a family earn the right to persist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .options import model_argument, settings_option, verbose_option
from .output import console

if TYPE_CHECKING:
    from ..certification import GateReport


@click.command()
@model_argument
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Length of the answers.",
)
@settings_option
@verbose_option
def certify(model: str, max_tokens: int, settings: dict[str, Any]) -> None:
    """Let a family earn the right to persist.

    Checks that a model answers from disk as it answers without, and writes that down.
    MODEL is loaded six times: twice to leave a prefix on disk, twice to find it in a fresh
    instance, and twice without a cold tier. Texts and tokens have to be equal, and the
    counts have to show that the prefix was restored. The evidence is for the installed
    version of the family's plugin; name the family in the setting certified_families to
    use it.
    """
    # the package's own door: it puts an optimised BLAS in front of MLX's
    from .. import certify as run_gate

    out = console()

    def show(report: GateReport) -> None:
        out.print(f"{report.describe()}\n", highlight=False)

    path = run_gate(model, max_tokens=max_tokens, report=show, **settings)
    out.print(f"passed: {path}", soft_wrap=True)
    out.print(
        f"to use it: neve generate {model} PROMPT --set persist_paged_cache=true "
        f"--set 'certified_families=[\"{path.stem}\"]'",
        style="dim",
        soft_wrap=True,
    )
