"""A local LLM engine on MLX that prefills every prompt prefix once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import NeveError
from .families import Catalogue
from .families import discover as families
from .settings import (
    CacheSettings,
    ColdSettings,
    ModelSettings,
    SchedulerSettings,
    Settings,
    TelemetrySettings,
)

if TYPE_CHECKING:
    from .certification import certify
    from .coldtier.inspection.handle import ColdStoreHandle, cold_store
    from .engine.completion import Completion, Piece
    from .engine.handles import Handle
    from .loading import load
    from .model import Chat, Model

__all__ = [
    "CacheSettings",
    "Catalogue",
    "Chat",
    "ColdSettings",
    "ColdStoreHandle",
    "Completion",
    "Handle",
    "Model",
    "ModelSettings",
    "NeveError",
    "Piece",
    "SchedulerSettings",
    "Settings",
    "TelemetrySettings",
    "certify",
    "cold_store",
    "families",
    "load",
]

_HOMES = {
    "Chat": "model",
    "ColdStoreHandle": "coldtier.inspection.handle",
    "Completion": "engine.completion",
    "Handle": "engine.handles",
    "Model": "model",
    "Piece": "engine.completion",
    "certify": "certification",
    "cold_store": "coldtier.inspection.handle",
    "load": "loading",
}


def __getattr__(name: str) -> Any:
    """Import what needs MLX only when it is asked for, and set up what it finds there."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from .metal.runtime import batching, blas

    blas.preload()
    batching.widen()
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
