"""A local LLM engine on MLX that prefills every prompt prefix once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import NeveError
from .families import Catalogue
from .families import discover as families
from .settings import CacheSettings, ModelSettings, SchedulerSettings, Settings

if TYPE_CHECKING:
    from .engine.completion import Completion, Piece
    from .engine.handles import Handle
    from .loading import load
    from .model import Chat, Model

__all__ = [
    "CacheSettings",
    "Catalogue",
    "Chat",
    "Completion",
    "Handle",
    "Model",
    "ModelSettings",
    "NeveError",
    "Piece",
    "SchedulerSettings",
    "Settings",
    "families",
    "load",
]

_HOMES = {
    "Chat": "model",
    "Completion": "engine.completion",
    "Handle": "engine.handles",
    "Model": "model",
    "Piece": "engine.completion",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    """Import what needs MLX only when it is asked for, behind an optimised BLAS."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from .metal import blas

    blas.preload()
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
