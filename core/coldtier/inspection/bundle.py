"""Objects on their way from one store to another: a tar file of nothing but objects.

Whoever made a bundle is trusted as the maker of a checkpoint is: a checksum proves that an
object is whole, not that its numbers are the model's. All else is not trusted. A member is a
regular file, named as an object, once; nothing of a member's header but name and size is
looked at, and nothing is unpacked: the store writes what was verified, under a name that it
makes itself.
"""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import attrs

from ... import interrupts
from ...errors import BundleError, ObjectRejectedError
from ..objects.format import verify_object
from ..objects.keys import ObjectName
from ..store.index import DEPTH_NS
from ..store.quota import WriteOutcome
from ..store.store import ColdStore
from .verification import MAX_OBJECT_BYTES

_BLOCK = tarfile.BLOCKSIZE
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)


@attrs.frozen
class ExportReport:
    """What went into a bundle.

    Attributes:
        num_objects: Objects in it.
        num_bytes: Their bytes.
        num_skipped: Objects that were gone or unsound.
    """

    num_objects: int
    num_bytes: int
    num_skipped: int


@attrs.frozen
class ImportReport:
    """What came out of a bundle.

    Attributes:
        num_written: Objects that are new in the store.
        num_bytes: Their bytes.
        num_present: Objects that it had already.
        num_left: Objects that it did not take, once it had refused one.
        refusal: Why it did; None if it took all.
    """

    num_written: int
    num_bytes: int
    num_present: int
    num_left: int = 0
    refusal: WriteOutcome | None = None


# -- export --------------------------------------------------------------------------------


def export_objects(store: ColdStore, names: Sequence[ObjectName], path: Path) -> ExportReport:
    """Write objects into a new file, in their order; it holds the prompts' token ids.

    Args:
        store: Where they are.
        names: Which ones, ancestors before descendants.
        path: The file; it must not exist, and does not if this fails.

    Raises:
        OSError: It exists or cannot be written.
    """
    num_objects = num_bytes = 0
    with (
        interrupts.deferred(),
        _new_file(path) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name in names:
            interrupts.check()
            data = _sound_object(store, name)
            if data is not None:
                member = tarfile.TarInfo(name.file_name)
                member.size, member.mode = len(data), 0o600
                tar.addfile(member, BytesIO(data))
                num_objects, num_bytes = num_objects + 1, num_bytes + len(data)
    return ExportReport(num_objects, num_bytes, len(names) - num_objects)


@contextmanager
def _new_file(path: Path) -> Generator[BinaryIO]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _sound_object(store: ColdStore, name: ObjectName) -> bytes | None:
    stored = store.read(name, MAX_OBJECT_BYTES)
    if stored is None:
        return None
    try:
        verify_object(stored.data, name)
    except ObjectRejectedError:
        return None
    return stored.data


# -- import --------------------------------------------------------------------------------


@attrs.frozen
class _Member:
    """An object's place in a bundle."""

    name: ObjectName
    offset: int
    num_bytes: int


def import_bundle(store: ColdStore, path: Path) -> ImportReport:
    """Write a bundle's objects into a store that lacks them, in their order.

    The whole bundle is looked through before the first object is written, and each object is
    verified before it is. A store that refuses one is not offered the rest.

    Raises:
        BundleError: The file is no bundle, or an object in it is unsound.
        OSError: It cannot be read, or the store cannot be written.
    """
    with interrupts.deferred(), path.open("rb") as file:
        members = _members(path, file)
        return _import(store, path, file, members)


def _import(
    store: ColdStore, path: Path, file: BinaryIO, members: Sequence[_Member]
) -> ImportReport:
    # as one chain: whoever comes later in the file is evicted sooner
    stamp_ns = time.time_ns()
    outcomes: list[WriteOutcome] = []
    num_bytes, refusal = 0, None
    for depth, member in enumerate(members):
        interrupts.check()
        data = _read_member(path, file, member, num_imported=len(outcomes))
        outcome = store.write(member.name, [data], stamp_ns - DEPTH_NS * depth)
        if outcome not in (WriteOutcome.WRITTEN, WriteOutcome.PRESENT):
            refusal = outcome
            break
        outcomes.append(outcome)
        num_bytes += len(data) if outcome is WriteOutcome.WRITTEN else 0
    # those that were there before must not be older than their descendants
    store.touch([member.name for member in members[: len(outcomes)]], stamp_ns)
    return ImportReport(
        num_written=outcomes.count(WriteOutcome.WRITTEN),
        num_bytes=num_bytes,
        num_present=outcomes.count(WriteOutcome.PRESENT),
        num_left=len(members) - len(outcomes),
        refusal=refusal,
    )


def _read_member(path: Path, file: BinaryIO, member: _Member, num_imported: int) -> bytes:
    file.seek(member.offset)
    data = file.read(member.num_bytes)
    try:
        verify_object(data, member.name)
    except ObjectRejectedError as error:
        reason = f"{member.name.file_name}: {error}"
        raise BundleError(path, reason, num_imported) from error
    return data


def _members(path: Path, file: BinaryIO) -> list[_Member]:
    members = list(_walk(path, file))
    names: set[ObjectName] = set()
    for member in members:
        if member.name in names:
            raise BundleError(path, f"{member.name.file_name} is in it twice")
        names.add(member.name)
    if not members:
        raise BundleError(path, "it has no objects: `neve cache export` makes a bundle")
    return members


def _walk(path: Path, file: BinaryIO) -> Iterator[_Member]:
    """Find each member, by its header alone; extensions of the format are refused.

    So no header can make us read more than one block of 512 bytes, and no name is longer
    than a header has place for.
    """
    end = os.fstat(file.fileno()).st_size
    offset = 0
    while (header := _header_at(path, file, offset)) is not None:
        member = _member(path, header, offset + _BLOCK)
        if member.offset + member.num_bytes > end:
            raise BundleError(path, f"{member.name.file_name} is cut off")
        yield member
        offset = member.offset + -(-member.num_bytes // _BLOCK) * _BLOCK


def _header_at(path: Path, file: BinaryIO, offset: int) -> tarfile.TarInfo | None:
    """Return a member's header, None at the end of the archive."""
    file.seek(offset)
    block = file.read(_BLOCK)
    if block == bytes(_BLOCK):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "ascii", "replace")
    except tarfile.HeaderError as error:
        raise BundleError(path, f"it is no bundle: {error} at byte {offset}") from error


def _member(path: Path, header: tarfile.TarInfo, offset: int) -> _Member:
    name = ObjectName.parse(header.name) if header.type in _FILES else None
    if name is None:
        raise BundleError(path, f"it may hold cold objects only, not {header.name[:100]!r}")
    if not 0 < header.size <= MAX_OBJECT_BYTES:
        raise BundleError(
            path,
            f"{name.file_name} must have 1 to {MAX_OBJECT_BYTES} bytes, not {header.size}",
        )
    return _Member(name, offset, header.size)
