"""Listings and totals of a store, without a model.

A listing trusts each object's own metadata, and reads only the first bytes of an object.
`verification` trusts no object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import attrs

from ...errors import UnknownModelError
from ...ids import Fingerprint
from ..objects.claims import HEAD_BYTES, claimed_key, claims_of, matched
from ..objects.keys import ColdGroup, ObjectName
from ..store.index import ObjectInfo
from ..store.quota import StoreUsage
from ..store.store import ColdStore

T = TypeVar("T")

_COUNT = re.compile("[1-9][0-9]{0,8}")


@attrs.frozen
class ObjectEntry:
    """One object, by its own description.

    Attributes:
        name: The object's name.
        num_bytes: The object's size.
        used_ns: The object's last use.
        model: Fingerprint of the object's model; None if the header cannot be read.
        num_tokens: Tokens of a KV block; None for any other object.
    """

    name: ObjectName
    num_bytes: int
    used_ns: int
    model: Fingerprint | None = None
    num_tokens: int | None = None


@attrs.frozen
class Amount:
    """Number and total bytes of objects."""

    num_objects: int
    num_bytes: int


@attrs.frozen
class StoreStats:
    """Totals of a store.

    Attributes:
        root: The store's folder.
        usage: Usage and limits of the store.
        groups: Objects of each group.
        models: Objects of each model, the largest total first; None stands for objects with
            an unreadable header.
        oldest_ns: Last use of the least recently used object; None for an empty store.
        newest_ns: Last use of the most recently used object; None for an empty store.
    """

    root: Path
    usage: StoreUsage
    groups: Mapping[ColdGroup, Amount]
    models: Mapping[Fingerprint | None, Amount]
    oldest_ns: int | None
    newest_ns: int | None


def list_entries(store: ColdStore) -> list[ObjectEntry]:
    """Return all objects, the most recently used first."""
    found = (_entry(store, info) for info in reversed(store.objects()))
    return [entry for entry in found if entry is not None]


def _entry(store: ColdStore, info: ObjectInfo) -> ObjectEntry | None:
    """Return an object's entry; None if the object has disappeared."""
    stored = store.read(info.name, HEAD_BYTES)
    if stored is None and not store.probe(info.name):
        return None
    claims = {} if stored is None else claims_of(stored.data, info.name)
    model = claimed_key(claims, "fingerprint")
    size = matched(_COUNT, claims.get("block_size"))
    is_block = info.name.group is ColdGroup.KV
    return ObjectEntry(
        name=info.name,
        num_bytes=info.num_bytes,
        used_ns=info.used_ns,
        model=None if model is None else Fingerprint(model),
        num_tokens=None if size is None or not is_block else int(size),
    )


def survey(store: ColdStore) -> StoreStats:
    """Return a store's totals.

    Raises:
        OSError: The file system's facts cannot be read.
    """
    entries = list_entries(store)
    models = amounts(entries, lambda entry: entry.model)
    return StoreStats(
        root=store.root,
        usage=store.usage(),
        groups=amounts(entries, lambda entry: entry.name.group),
        models=dict(sorted(models.items(), key=lambda item: -item[1].num_bytes)),
        oldest_ns=entries[-1].used_ns if entries else None,
        newest_ns=entries[0].used_ns if entries else None,
    )


def amounts(
    entries: Iterable[ObjectEntry], kind: Callable[[ObjectEntry], T]
) -> dict[T, Amount]:
    """Return number and bytes of the objects of each kind."""
    found: dict[T, Amount] = {}
    for entry in entries:
        known = found.get(kind(entry), Amount(0, 0))
        found[kind(entry)] = Amount(known.num_objects + 1, known.num_bytes + entry.num_bytes)
    return found


def entries_of(entries: Sequence[ObjectEntry], prefix: str) -> list[ObjectEntry]:
    """Return the objects of the one model whose fingerprint begins with `prefix`.

    Args:
        entries: Entries from `list_entries`.
        prefix: Hexadecimal digits.

    Raises:
        UnknownModelError: No fingerprint begins so, or several do.
    """
    models = {entry.model.hex(): entry.model for entry in entries if entry.model is not None}
    wanted = prefix.lower()
    found = [model for digits, model in models.items() if wanted and digits.startswith(wanted)]
    if len(found) != 1:
        known = ", ".join(digits[:16] for digits in sorted(models)) or "none"
        raise UnknownModelError(
            f"{prefix!r} must begin the fingerprint of one model of the store, but "
            f"{len(found)} fingerprints begin so (known: {known})"
        )
    return [entry for entry in entries if entry.model == found[0]]
