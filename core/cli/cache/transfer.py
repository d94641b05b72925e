"""`neve cache export` and `import`: prefixes on their way to another store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from ..output import note, write_json
from .options import count_text, model_hint, open_store, size_text, store_options
from .prompt import Asked, prefix_of, prompt_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...coldtier.inspection.handle import ColdStoreHandle
    from ...coldtier.inspection.listing import ObjectEntry
    from ...coldtier.objects.keys import ObjectName


def _to_export(
    store: ColdStoreHandle,
    model: str | None,
    model_prefix: str | None,
    settings: Mapping[str, Any],
    asked: Asked,
) -> Sequence[ObjectName | ObjectEntry]:
    if model is None:
        with model_hint():
            return store.objects(model_prefix)
    found = store.stored_prefix(prefix_of(store, model, settings, asked))
    if not found:
        raise click.ClickException(
            "no block of this prompt is in the store: `neve cache explain` says why"
        )
    return found


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("prompt", required=False)
@click.option("--model", help="The MODEL whose blocks of PROMPT are meant.")
@click.option(
    "--model-prefix",
    metavar="PREFIX",
    help="Instead of a prompt: all objects of the model whose fingerprint begins so.",
)
@prompt_options
@store_options
def export(
    file: Path,
    prompt: str | None,
    model: str | None,
    model_prefix: str | None,
    settings: dict[str, Any],
    folder: str | None,
    as_json: bool,
    **sent: Any,
) -> None:
    """Write a prompt's objects, or a model's, to FILE.

    FILE is a new tar file. PROMPT is read from stdin if it is - or missing. Whoever has
    the file can read the prompts that it holds.
    """
    asked = Asked(prompt=prompt, **sent)
    if (model is None) == (model_prefix is None):
        raise click.UsageError("give one of --model and --model-prefix")
    if model is None and prompt is not None:
        raise click.UsageError("PROMPT needs --model: its tokenizer makes the tokens")
    if file.exists():
        raise click.BadParameter(f"{file} exists: choose a new name", param_hint="'FILE'")
    with open_store(folder) as store:
        done = store.export(file, _to_export(store, model, model_prefix, settings, asked))
    if as_json:
        write_json({"file": str(file), **attrs.asdict(done)})
        return
    click.echo(f"{count_text(done.num_objects, 'object')}, {size_text(done.num_bytes)}: {file}")
    if done.num_skipped:
        note(f"left out, since gone or unsound: {count_text(done.num_skipped, 'object')}")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@store_options
@click.pass_context
def import_(ctx: click.Context, file: Path, folder: str | None, as_json: bool) -> None:
    """Take over the objects of an exported FILE.

    The quota holds, and a store is made if there is none. Trust whoever made the file as you
    would for a model: it decides what a prefix means. The exit code is 1 if the store did not
    take all of it.
    """
    with open_store(folder, create=True) as store:
        done = store.import_bundle(file)
    refusal = None if done.refusal is None else done.refusal.value
    if as_json:
        write_json({**attrs.asdict(done), "refusal": refusal})
    else:
        written = f"{count_text(done.num_written, 'new object')}, {size_text(done.num_bytes)}"
        click.echo(f"{written}; {done.num_present} were there")
        if refusal is not None:
            note(f"{count_text(done.num_left, 'object')} left out: {refusal}")
    ctx.exit(0 if refusal is None else 1)
