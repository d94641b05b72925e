"""Writes of objects into the store: whole, durable, and within the bounds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from ..objects.claims import HEAD_BYTES, Link, link_of
from ..objects.keys import ObjectName
from ..stats import Counters
from .contents import Contents
from .eviction import Admission
from .files import open_shard, temporary
from .quota import Bounds, WriteOutcome

if TYPE_CHECKING:
    from typing_extensions import Buffer


@attrs.frozen(eq=False)
class Commit:
    """Writes objects into a folder.

    Attributes:
        contents: Files, index and ledger of the folder.
        bounds: Limits of the store.
        counters: Counters for evictions.
    """

    contents: Contents
    bounds: Bounds
    counters: Counters

    def write(self, name: ObjectName, parts: Sequence[Buffer], stamp_ns: int) -> WriteOutcome:
        """Make an object durable, or return the refusal; see `ColdStore.write`.

        Raises:
            FileNotFoundError: The store's folder was deleted.
            OSError: The object cannot be written; no part of the object is left.
        """
        contents = self.contents
        if contents.find(name):
            return WriteOutcome.PRESENT
        num_bytes = sum(memoryview(part).nbytes for part in parts)
        # Admission runs twice. Before the write, because a refusal should cost no write and a
        # full disk has no room until objects are evicted; after the write, because other
        # processes may have used the room meanwhile.
        admission = self._admission(num_bytes, stamp_ns, unwritten_bytes=num_bytes)
        if admission.is_short:
            contents.link()
        with contents.exclusive():
            refusal = admission.refusal()
        if refusal is not None:
            return refusal
        link = link_of(_head(parts), name)
        with (
            open_shard(contents.directory.objects, name) as shard,
            temporary(shard, name, parts, stamp_ns) as temp,
        ):
            outcome = self._commit(shard, temp, name, num_bytes, stamp_ns, link)
            if outcome is WriteOutcome.WRITTEN:
                os.fsync(shard)
        return outcome

    def _commit(
        self,
        shard: int,
        temp: str,
        name: ObjectName,
        num_bytes: int,
        stamp_ns: int,
        link: Link | None,
    ) -> WriteOutcome:
        with self.contents.exclusive():
            if self.contents.find(name):
                return WriteOutcome.PRESENT
            refusal = self._admission(num_bytes, stamp_ns, unwritten_bytes=0).refusal()
            if refusal is not None:
                return refusal
            self.contents.add(shard, temp, name, num_bytes, stamp_ns, link)
        return WriteOutcome.WRITTEN

    def _admission(self, num_bytes: int, stamp_ns: int, unwritten_bytes: int) -> Admission:
        return Admission(
            self.contents, self.bounds, self.counters, num_bytes, stamp_ns, unwritten_bytes
        )


def _head(parts: Sequence[Buffer]) -> bytes:
    """Return the first bytes of an object; its first piece contains the whole header."""
    return bytes(memoryview(parts[0]).cast("B")[:HEAD_BYTES]) if parts else b""
