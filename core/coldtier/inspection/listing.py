"""What a store holds, for whoever has no model: a listing, and what it adds up to.

A listing believes what objects say of themselves, which costs a look at each one's first
bytes; `verification` believes nothing.
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
    """One object, as it describes itself.

    Attributes:
        name: Its name.
        num_bytes: Its size.
        used_ns: Its last use.
        model: Fingerprint of its model; None if its header cannot be read.
        num_tokens: Tokens of a KV block; None for any other object.
    """

    name: ObjectName
    num_bytes: int
    used_ns: int
    model: Fingerprint | None = None
    num_tokens: int | None = None


@attrs.frozen
class Amount:
    """How many objects, and how large they are together."""

    num_objects: int
    num_bytes: int


@attrs.frozen
class StoreStats:
    """What a store adds up to.

    Attributes:
        root: Its folder.
        usage: What it takes, and what it may.
        groups: What each group has.
        models: What each model has, the largest first; None stands for objects whose header
            cannot be read.
        oldest_ns: The last use of the object that goes first; None for an empty store.
        newest_ns: The last use of the one that goes last.
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
    """Return an object's entry, None if it has gone meanwhile."""
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
    """Return what a store adds up to.

    Raises:
        OSError: The file system does not say.
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
    """Return what the objects of each kind amount to."""
    found: dict[T, Amount] = {}
    for entry in entries:
        known = found.get(kind(entry), Amount(0, 0))
        found[kind(entry)] = Amount(known.num_objects + 1, known.num_bytes + entry.num_bytes)
    return found


def entries_of(entries: Sequence[ObjectEntry], prefix: str) -> list[ObjectEntry]:
    """Return the objects of the one model whose fingerprint begins with `prefix`.

    Args:
        entries: What `list_entries` returned.
        prefix: Hexadecimal digits.

    Raises:
        UnknownModelError: No model's does, or those of several.
    """
    models = {entry.model.hex(): entry.model for entry in entries if entry.model is not None}
    wanted = prefix.lower()
    found = [model for digits, model in models.items() if wanted and digits.startswith(wanted)]
    if len(found) != 1:
        raise UnknownModelError(
            f"{prefix!r} must begin the fingerprint of one model of the store, and begins "
            f"{len(found)} (known: {', '.join(d[:16] for d in sorted(models)) or 'none'})"
        )
    return [entry for entry in entries if entry.model == found[0]]
