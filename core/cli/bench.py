"""`neve bench`: measure a model on this machine."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import click

from ..settings import MAX_NUM_SEQS_LIMIT
from .loaded import cache_groups, describe, groups_table, load_model
from .measure import STAGES, Speeds, Workload, check_workload, medians, run_round
from .options import json_option, model_argument, settings_option, verbose_option
from .output import console, milliseconds, table, write_json

if TYPE_CHECKING:
    from ..kvcache.stats import GroupStats
    from ..model import Model


def _print(what: str, workload: Workload, speeds: Speeds, groups: Sequence[GroupStats]) -> None:
    rows = [
        (f"prefill, {workload.prompt_tokens} tokens", speeds.prefill_tokens_per_s, ""),
        ("decode, 1 request", speeds.decode_tokens_per_s, ""),
    ]
    if workload.requests > 1:
        ratio = f"{speeds.batch_speedup:.1f}x of 1"
        what_ran = f"decode, {workload.requests} at once"
        rows.append((what_ran, speeds.batch_tokens_per_s, ratio))
    shown = table("measured", "median", "ratio")
    for name, rate, ratio in rows:
        shown.add_row(name, f"{rate:.1f} tokens/s", ratio)
    shown.add_row("first token, unknown prompt", milliseconds(speeds.cold_ttft_ms), "")
    faster = f"{speeds.prefix_speedup:.1f}x sooner"
    shown.add_row("first token, known prefix", milliseconds(speeds.warm_ttft_ms), faster)
    out = console()
    out.print(what, style="dim")
    out.print(shown)
    if groups:
        out.print()
        out.print(groups_table(groups))


def _measure(model: Model, workload: Workload, repetitions: int, seed: int) -> Speeds:
    source = random.Random(seed)  # noqa: S311  prompts, not secrets
    with click.progressbar(
        length=(repetitions + 1) * STAGES,
        label="measuring",
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as bar:
        speeds = [
            run_round(model, workload, source, lambda: bar.update(1))
            for _ in range(repetitions + 1)
        ]
    return medians(speeds[1:])


def _as_dict(speeds: Speeds) -> dict[str, float]:
    ratios = {
        "batch_speedup": speeds.batch_speedup,
        "prefix_speedup": speeds.prefix_speedup,
    }
    return {**attrs.asdict(speeds), **ratios}


@click.command()
@model_argument
@click.option(
    "--prompt-tokens",
    type=click.IntRange(32),
    default=256,
    show_default=True,
    help="Length of the prompts that measure prefill and prefix hits.",
)
@click.option(
    "--new-tokens",
    type=click.IntRange(8),
    default=32,
    show_default=True,
    help="Tokens of an answer.",
)
@click.option(
    "--requests",
    type=click.IntRange(1, MAX_NUM_SEQS_LIMIT),
    default=8,
    show_default=True,
    help="Requests that run at once.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Rounds that count.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the prompts."
)
@json_option
@settings_option
@verbose_option
def bench(
    model: str,
    repetitions: int,
    seed: int,
    as_json: bool,
    settings: dict[str, Any],
    **workload: int,
) -> None:
    """Measure prefill, decode, batching and prefix hits of MODEL.

    Prompts are random tokens; figures are medians over the repetitions, after one that does
    not count. Below them stands what each group of the cache holds at the end.
    """
    asked = Workload(**workload)
    settings = {"max_num_seqs": asked.requests, **settings}
    with load_model(model, settings) as loaded:
        check_workload(loaded, asked)
        what = describe(loaded)
        speeds = _measure(loaded, asked, repetitions, seed)
        groups = cache_groups(loaded)
    if as_json:
        figures = {**_as_dict(speeds), "groups": [attrs.asdict(group) for group in groups]}
        write_json({"model": model, "engine": what, **workload, **figures})
    else:
        _print(what, asked, speeds, groups)
