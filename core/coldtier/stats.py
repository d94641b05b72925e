"""The cold tier's counters.

Sidecars have a type of their own, which can be read without an open store: a run without a
store needs its figures most.
"""

from __future__ import annotations

import threading

import attrs


@attrs.frozen(kw_only=True)
class ColdCacheStats:
    """The tier: its reads, counted in blocks, and its write queue, counted in objects.

    Attributes:
        enabled: Whether a store is open.
        root: The store's folder; empty without one.
        quota_bytes: Bound on the bytes of all objects together.
        hits: Blocks that were read, verified and published.
        misses: Blocks that a read asked for and did not get.
        enqueued: Objects, sidecars included, that entered the write queue.
        queue_drops: Objects, sidecars included, that a full write queue refused.
        bytes_written: Bytes of durable objects, their directory entry included.
        bytes_restored: Bytes of the blocks that were published.
        evictions: Objects removed to make room.
        corruptions: Objects that were opened, found unsound and removed.
        write_errors: Enqueued objects that could not be written.
        restore_declines: Restores refused before any object was read.
    """

    enabled: bool = False
    root: str = ""
    quota_bytes: int = 0
    hits: int = 0
    misses: int = 0
    enqueued: int = 0
    queue_drops: int = 0
    bytes_written: int = 0
    bytes_restored: int = 0
    evictions: int = 0
    corruptions: int = 0
    write_errors: int = 0
    restore_declines: int = 0


@attrs.frozen(kw_only=True)
class ColdSidecarStats:
    """Sidecars; their `enqueued` and `queue_drops` are included in the tier's counts.

    Attributes:
        capture_reached: Finished requests that reached the capture of a sidecar.
        chain_empty: Captures without any whole block on disk.
        boundary_skips: Captures without a snapshot within the chain's reach.
        already_persisted: Captures whose sidecar was already on disk.
        enqueued: Sidecars that entered the write queue.
        queue_drops: Sidecars that a full write queue refused.
        installed: Sidecars that were restored and used.
        restore_suppressed: Sidecars that were restored and then discarded.
    """

    capture_reached: int = 0
    chain_empty: int = 0
    boundary_skips: int = 0
    already_persisted: int = 0
    enqueued: int = 0
    queue_drops: int = 0
    installed: int = 0
    restore_suppressed: int = 0


class Counters:
    """The counts behind both types; the engine, the reader and the writer add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache = dict.fromkeys(_counts(ColdCacheStats), 0)
        self._sidecar = dict.fromkeys(_counts(ColdSidecarStats), 0)

    def add(self, **counts: int) -> None:
        """Add to the tier's counts, by field name."""
        with self._lock:
            for name, count in counts.items():
                self._cache[name] += count

    def add_sidecar(self, **counts: int) -> None:
        """Add to the sidecars' counts, by field name."""
        with self._lock:
            for name, count in counts.items():
                self._sidecar[name] += count

    def cache(self, *, root: str = "", quota_bytes: int = 0) -> ColdCacheStats:
        """Return the tier's counts; the tier counts as enabled if `root` is given."""
        with self._lock:
            counts = dict(self._cache)
        return ColdCacheStats(enabled=bool(root), root=root, quota_bytes=quota_bytes, **counts)

    def sidecar(self) -> ColdSidecarStats:
        """Return the sidecars' counts."""
        with self._lock:
            return ColdSidecarStats(**self._sidecar)


def _counts(stats: type[attrs.AttrsInstance]) -> list[str]:
    identity = {"enabled", "root", "quota_bytes"}
    return [field.name for field in attrs.fields(stats) if field.name not in identity]
