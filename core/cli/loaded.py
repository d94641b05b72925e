"""Load a model for a command."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .output import note

if TYPE_CHECKING:
    from ..model import Model

INTERRUPTED = 130
"""Exit code that a shell reports of a program that Ctrl-C ended."""


def load_model(source: str, settings: Mapping[str, Any]) -> Model:
    """Load a model, and say so to whoever waits at a terminal; Ctrl-C ends the program.

    Raises:
        NeveError: As `neve.load`.
    """
    # the package's own door: it puts an optimised BLAS in front of MLX's
    from .. import load

    if sys.stderr.isatty():
        note(f"loading {source}")
    try:
        return load(source, **settings)
    except KeyboardInterrupt:
        note("interrupted")
        # at once: the interpreter's own exit would abort under a thread that reads weights
        os._exit(INTERRUPTED)


def describe(model: Model) -> str:
    """Return what runs, and how, in one line."""
    from ..metal import device

    info = model.info
    where = "GPU" if device.is_gpu() else "CPU"
    return (
        f"{info.family.name} {info.family.version} · {info.dtype} on the {where} · "
        f"{info.lane} cache of {info.effective_window_tokens} tokens"
    )
