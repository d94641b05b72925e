"""Verification of every object of a store, without the objects' models."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import attrs

from ...errors import ObjectRejectedError
from ..objects.format import verify_object
from ..objects.keys import ObjectName
from ..store.index import ObjectInfo
from ..store.store import ColdStore

MAX_OBJECT_BYTES = 2 << 30
"""Bound on the bytes of an object, far above the layout of any real model."""

MAX_JOBS = 8
"""Default bound on threads, as each thread holds one object in memory."""


@attrs.frozen
class UnsoundObject:
    """An object that every reader would reject.

    Attributes:
        name: The object's name.
        num_bytes: The object's size.
        cause: As in `ObjectRejectedError`, or `unreadable`.
        reason: The cause in one sentence.
        removed: Whether the object was removed.
    """

    name: ObjectName
    num_bytes: int
    cause: str
    reason: str
    removed: bool = False


@attrs.frozen
class Verification:
    """The result of a verification.

    Attributes:
        num_objects: Objects that were read.
        num_bytes: Bytes of the objects that were read.
        unsound: Objects that failed the verification.
    """

    num_objects: int
    num_bytes: int
    unsound: tuple[UnsoundObject, ...]


def verify_store(
    store: ColdStore,
    *,
    jobs: int | None = None,
    prune: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Read every object in full and verify its checksum and its own claims.

    Objects that disappear meanwhile are passed over.

    Args:
        store: The store; other processes may use the store at the same time.
        jobs: Threads; None means one a processor, at most `MAX_JOBS`.
        prune: Remove unsound objects.
        progress: Called with the bytes done and the total bytes.
    """
    infos = store.objects()
    total, done, num_objects, num_bytes = sum(info.num_bytes for info in infos), 0, 0, 0
    unsound: list[UnsoundObject] = []
    pool = ThreadPoolExecutor(jobs or min(MAX_JOBS, os.cpu_count() or 1), "neve-cold-verify")
    try:
        results = pool.map(partial(verify_one, store, prune=prune), infos)
        for info, (found, fault) in zip(infos, results, strict=True):
            done += info.num_bytes
            num_objects += found
            num_bytes += info.num_bytes * found
            unsound += [] if fault is None else [fault]
            if progress is not None:
                progress(done, total)
    finally:  # an interrupt must not wait for the remaining objects
        pool.shutdown(cancel_futures=True)
    return Verification(num_objects, num_bytes, tuple(unsound))


def verify_one(
    store: ColdStore, info: ObjectInfo, *, prune: bool = False
) -> tuple[bool, UnsoundObject | None]:
    """Return whether an object exists, and its fault; None for a sound object."""
    # not `info.num_bytes`: a whole object may have replaced a torn one since the listing
    stored = store.read(info.name, MAX_OBJECT_BYTES)
    if stored is None:
        return _unreadable(store, info, prune=prune)
    try:
        verify_object(stored.data, info.name)
    except ObjectRejectedError as error:
        removed = prune and store.reject(info.name, stored.identity)
        return True, UnsoundObject(info.name, info.num_bytes, error.cause, str(error), removed)
    return True, None


def _unreadable(
    store: ColdStore, info: ObjectInfo, *, prune: bool
) -> tuple[bool, UnsoundObject | None]:
    if not store.probe(info.name):
        return False, None
    removed = prune and store.remove([info.name]) == 1
    reason = "the file exists but cannot be read"
    return True, UnsoundObject(info.name, info.num_bytes, "unreadable", reason, removed)
