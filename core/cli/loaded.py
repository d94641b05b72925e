"""Load a model for a command."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .. import interrupts
from .output import note, table

if TYPE_CHECKING:
    from rich.table import Table

    from ..kvcache.stats import GroupStats
    from ..model import Model


@contextmanager
def load_model(source: str, settings: Mapping[str, Any]) -> Generator[Model]:
    """Load a model, and say so to whoever waits at a terminal; close it behind the block.

    Ctrl-C ends the program at once while the model is loaded, since nothing is lost then, and
    inside the block where the program waits for an answer.

    Raises:
        NeveError: As `neve.load`.
    """
    # the package's own door: it puts an optimised BLAS in front of MLX's
    from .. import load

    if sys.stderr.isatty():
        note(f"loading {source}")
    model = load(source, **settings)
    with interrupts.deferred(), model:
        yield model


def describe(model: Model) -> str:
    """Return what runs, and how, in one line."""
    from ..metal.runtime import device

    info = model.info
    where = "GPU" if device.is_gpu() else "CPU"
    return (
        f"{info.family.name} {info.family.version} · {info.dtype} on the {where} · "
        f"{info.lane} cache of {info.effective_window_tokens} tokens"
    )


def cache_groups(model: Model) -> tuple[GroupStats, ...]:
    """Return the figures of a model's cache groups; none on the flat path."""
    pools = model.stats().pools
    return () if pools is None else pools.groups


def groups_table(groups: Sequence[GroupStats]) -> Table:
    """Return a table of what each group's pool holds; the null block is left out."""
    shown = table("cache group", "blocks", "in use", "kept", "free", "evicted so far")
    for group in groups:
        counts = (
            group.num_blocks - 1,
            group.num_live,
            group.num_evictable,
            group.num_free,
            group.evictions,
        )
        shown.add_row(group.kind, *map(str, counts))
    return shown
