"""The store's place on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ...errors import StoreUnavailableError
from .directory import FORMAT


def default_root(cold_cache_dir: str | None) -> Path:
    """Return the store's folder.

    Args:
        cold_cache_dir: Parent folder of the store; None means the platform's cache folder.

    Raises:
        StoreUnavailableError: There is no home folder.
    """
    try:
        if cold_cache_dir:
            return Path(cold_cache_dir).expanduser() / FORMAT
        return _caches() / "neve" / "cold" / "v1"
    except RuntimeError as error:
        raise StoreUnavailableError("there is no home folder: set cold_cache_dir") from error


def _caches() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else Path.home() / ".cache"
