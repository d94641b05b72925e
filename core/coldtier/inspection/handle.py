"""A user's handle on a store; no model is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from ...arguments import flag, function, instance, integer, items, optional_text
from ...arguments import path as path_argument
from ...errors import StoreUnavailableError
from ...settings import ColdSettings, Settings, resolve
from ..objects.keys import ObjectName
from ..stats import Counters
from ..store.directory import MARKER
from ..store.index import ObjectInfo
from ..store.location import default_root
from ..store.quota import GIB, StoreLimits
from ..store.store import ColdStore
from .bundle import ExportReport, ImportReport, export_objects, import_bundle
from .explanation import Explanation, Prefix, explain, stored_prefix
from .listing import ObjectEntry, StoreStats, entries_of, list_entries, survey
from .verification import Verification, verify_store


def limits_of(settings: ColdSettings) -> StoreLimits:
    """Return the store's limits from the settings."""
    return StoreLimits(
        quota_bytes=_gib(settings.cold_quota_gb),
        min_free_bytes=_gib(settings.cold_min_free_gb),
        daily_write_bytes=_gib(settings.cold_daily_write_gb),
    )


def _gib(gigabytes: float | None) -> int | None:
    return None if gigabytes is None else int(gigabytes * GIB)


def cold_store(
    path: str | Path | None = None, *, settings: Settings | None = None, create: bool = False
) -> ColdStoreHandle:
    """Open the store of cold objects; engines may use the store at the same time.

    Args:
        path: The parent folder of the store, as the setting `cold_cache_dir`, or the store's
            own folder; None means the folder of the settings.
        settings: Settings; environment and defaults complete them, as in `load`.
        create: Create a missing store.

    Raises:
        RequestError: An argument is of the wrong type.
        SettingsError: An impossible setting.
        StoreUnavailableError: The store does not exist, or cannot be used.
    """
    given = {} if path is None else {"cold_cache_dir": str(path_argument("path", path))}
    create = flag("create", create)
    cold = resolve(settings, given).settings.cold
    root = _root(cold.cold_cache_dir)
    if not create and _is_missing(root / MARKER):
        raise StoreUnavailableError(f"{root} does not exist, or contains no store yet")
    return ColdStoreHandle(ColdStore.open(root, limits_of(cold), Counters()))


def _root(folder: str | None) -> Path:
    if folder and not _is_missing(Path(folder).expanduser() / MARKER):
        return Path(folder).expanduser()
    return default_root(folder)


def _is_missing(path: Path) -> bool:
    """Return whether a path does not exist; other faults are reported when it is opened."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


class ColdStoreHandle:
    """A store to list, verify, prune, clear, export and import, without a model.

    Removing objects that an engine uses costs the engine a prefill, nothing else. Use the
    handle as a context manager, or call `close`. All methods that change the store may raise
    `OSError`, and all refuse an argument of the wrong type with a `RequestError`.

    Attributes:
        root: The store's folder.
        quota_bytes: Bound on the bytes of all objects together.
    """

    def __init__(self, store: ColdStore) -> None:
        self.root = store.root
        self.quota_bytes = store.quota_bytes
        self._store = store

    def objects(self, model: str | None = None) -> list[ObjectEntry]:
        """Return the objects, the most recently used first.

        Args:
            model: First hexadecimal digits of a model's fingerprint, to return the objects of
                this one model; None means all objects.

        Raises:
            UnknownModelError: No fingerprint in the store begins so, or several do.
        """
        model = optional_text("model", model)
        entries = list_entries(self._store)
        return entries if model is None else entries_of(entries, model)

    def stats(self) -> StoreStats:
        """Return the store's totals."""
        return survey(self._store)

    def verify(
        self,
        *,
        jobs: int | None = None,
        prune: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Verification:
        """Read every object and verify that the object is whole; see `verify_store`."""
        return verify_store(
            self._store,
            jobs=None if jobs is None else integer("jobs", jobs, 1),
            prune=flag("prune", prune),
            progress=None if progress is None else function("progress", progress),
        )

    def explain(self, prefix: Prefix) -> Explanation:
        """Return the blocks of a prompt that a restore would return, and the miss cause."""
        return explain(self._store, _prefix(prefix))

    def prune(self, target_bytes: int, *, dry_run: bool = False) -> list[ObjectInfo]:
        """Remove objects until the others have at most `target_bytes` bytes.

        Args:
            target_bytes: Bytes that may stay; see `ColdStore.prune` for the order.
            dry_run: Remove nothing; only return the candidates.

        Returns:
            The removed objects, or the candidates.
        """
        return self._store.prune(
            integer("target_bytes", target_bytes, 0), dry_run=flag("dry_run", dry_run)
        )

    def clear(self, model: str | None = None) -> int:
        """Remove all objects, or the objects of one model, and return their number.

        Args:
            model: As in `objects`.

        Raises:
            UnknownModelError: As `objects`.
        """
        if model is None:
            return self._store.clear()
        return self._store.remove([entry.name for entry in self.objects(model)])

    def stored_prefix(self, prefix: Prefix) -> list[ObjectName]:
        """Return the objects of a prompt, up to the first missing block."""
        return stored_prefix(self._store, _prefix(prefix))

    def export(
        self, file: str | Path, objects: Iterable[ObjectName | ObjectEntry]
    ) -> ExportReport:
        """Write objects into a new bundle, for another store to import.

        A bundle contains the token ids of prompts in readable form.

        Args:
            file: The bundle; it must not exist yet.
            objects: Objects to write, as returned by `stored_prefix` or `objects`.
        """
        return export_objects(self._store, _names(objects), path_argument("file", file))

    def import_bundle(self, file: str | Path) -> ImportReport:
        """Import the objects of a bundle, within the quota.

        Trust a bundle's maker like a checkpoint's maker: a bundle decides the state that a
        model restores for a prefix.

        Raises:
            BundleError: The file is no bundle, or not whole.
        """
        return import_bundle(self._store, path_argument("file", file))

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _prefix(prefix: Prefix) -> Prefix:
    return instance("prefix", prefix, Prefix, "a Prefix")


def _names(objects: Iterable[ObjectName | ObjectEntry]) -> Sequence[ObjectName]:
    given = items("objects", objects, (ObjectName, ObjectEntry), "object names or entries")
    return [item.name if isinstance(item, ObjectEntry) else item for item in given]
