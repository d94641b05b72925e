"""`neve cache explain`: what a store has of a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from ..output import console, table, write_json
from .options import count_text, model_text, open_store, store_options
from .prompt import Asked, prefix_of, prompt_options

if TYPE_CHECKING:
    from ...coldtier.inspection.explanation import Explanation, Prefix


def _explanation_dict(prefix: Prefix, found: Explanation) -> dict[str, Any]:
    return {
        "model": prefix.fingerprint.hex(),
        "tokens": found.num_tokens,
        "block_size": found.block_size,
        "blocks": found.num_blocks,
        "ranges": [attrs.asdict(blocks) for blocks in found.ranges],
        "restorable_blocks": found.restorable_blocks,
        "first_missing": found.first_missing,
        "cause": found.cause,
        "reason": found.reason,
    }


def _print_explanation(prefix: Prefix, found: Explanation) -> None:
    out, size = console(), found.block_size
    tokens = count_text(found.num_tokens, "token")
    out.print(f"model {model_text(prefix.fingerprint)}, {tokens}", style="dim")
    shown = table("blocks", "tokens", "in the store")
    for blocks in found.ranges:
        span = f"{blocks.first * size} to {blocks.end * size - 1}"
        answer = "yes" if blocks.present else "no"
        shown.add_row(f"{blocks.first} to {blocks.end - 1}", span, answer)
    if found.ranges:
        out.print(shown)
    restored = f"{found.restorable_blocks} of {count_text(found.num_blocks, 'block')}"
    out.print(f"{restored} would come back, {found.restorable_blocks * size} tokens")
    if found.cause is not None:
        where = f"block {found.first_missing}: " if found.num_blocks else ""
        out.print(f"{where}{found.reason} ({found.cause})", soft_wrap=True)


@click.command()
@click.argument("prompt", required=False)
@click.option("--model", required=True, help="The MODEL that would be asked.")
@prompt_options
@store_options
def explain(
    prompt: str | None,
    model: str,
    settings: dict[str, Any],
    folder: str | None,
    as_json: bool,
    **sent: Any,
) -> None:
    """Say what of PROMPT is on disk, and why no more.

    PROMPT is read from stdin if it is - or missing. No model is loaded, but its weights
    are read once, to tell them from all others.
    """
    asked = Asked(prompt=prompt, **sent)
    with open_store(folder) as store:
        prefix = prefix_of(store, model, settings, asked)
        found = store.explain(prefix)
    if as_json:
        write_json(_explanation_dict(prefix, found))
    else:
        _print_explanation(prefix, found)
