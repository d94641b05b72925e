"""`neve doctor`: look whether everything is in place, and at a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import attrs
import click

from ..options import json_option
from ..output import console, write_json
from .checkpoint_checks import checkpoint_findings
from .checks import Finding, all_findings

_STYLES = {"ok": "green", "warning": "yellow", "broken": "bold red"}


def _print(findings: Iterable[Finding]) -> None:
    from rich.text import Text

    out = console()
    for finding in findings:
        mark = (f"{finding.status:<8}", _STYLES[finding.status])
        out.print(Text.assemble(mark, f"{finding.name}: {finding.detail}"), soft_wrap=True)
        if finding.advice is not None:
            out.print(f"        what to do: {finding.advice}", soft_wrap=True)


@click.command()
@click.argument("checkpoint", required=False)
@json_option
@click.pass_context
def doctor(ctx: click.Context, checkpoint: str | None, as_json: bool) -> None:
    """Check the installation: MLX, device, plugins, folders.

    With CHECKPOINT, a MODEL as elsewhere, also say what its cache would hold, group by group,
    and whether its prefixes go to disk. No weight is loaded; what is not here is downloaded.

    Every problem comes with what to do. The exit code is 1 if something is broken.
    """
    about = () if checkpoint is None else checkpoint_findings(checkpoint)
    findings = list(itertools.chain(all_findings(), about))
    if as_json:
        write_json({"findings": [attrs.asdict(finding) for finding in findings]})
    else:
        _print(findings)
    ctx.exit(1 if any(finding.status == "broken" for finding in findings) else 0)
