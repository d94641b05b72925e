"""A local LLM engine on MLX that prefills every prompt prefix once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .catalogue import Catalogue
    from .catalogue import discover as families
    from .certification import certify
    from .coldtier.inspection.handle import ColdStoreHandle, cold_store
    from .conversation import Chat
    from .engine.completion import Completion, Piece
    from .engine.handles import Handle
    from .engine.stream import Stream
    from .errors import NeveError
    from .loading import load
    from .model import Model
    from .settings import (
        CacheSettings,
        ColdSettings,
        ModelSettings,
        SchedulerSettings,
        Settings,
        TelemetrySettings,
    )

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
    "Stream",
    "TelemetrySettings",
    "certify",
    "cold_store",
    "families",
    "load",
]

_HOMES = {
    "CacheSettings": "settings",
    "Catalogue": "catalogue",
    "ColdSettings": "settings",
    "ModelSettings": "settings",
    "NeveError": "errors",
    "SchedulerSettings": "settings",
    "Settings": "settings",
    "TelemetrySettings": "settings",
    "families": "catalogue",
}
_HOMES_WITH_MLX = {
    "Chat": "conversation",
    "ColdStoreHandle": "coldtier.inspection.handle",
    "Completion": "engine.completion",
    "Handle": "engine.handles",
    "Model": "model",
    "Piece": "engine.completion",
    "Stream": "engine.stream",
    "certify": "certification",
    "cold_store": "coldtier.inspection.handle",
    "load": "loading",
}
_NAMES_AT_HOME = {"families": "discover"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for; before MLX is imported, set it up.

    So the package itself costs next to nothing: the program's `main` is reached, and answers
    Ctrl-C, before anything large is imported.
    """
    home = _HOMES.get(name) or _HOMES_WITH_MLX.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name in _HOMES_WITH_MLX:
        from .metal.runtime import batching, blas

        blas.preload()
        batching.widen()
    found = getattr(import_module(f".{home}", __name__), _NAMES_AT_HOME.get(name, name))
    globals()[name] = found
    return found
