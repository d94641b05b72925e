"""Bundles: tar files that carry objects from one store to another.

The maker of a bundle must be trusted like the maker of a checkpoint: a checksum proves that an
object is whole, but not that its values are the model's. Nothing else is trusted. A member must
be a regular file with an object's name, once. Only name and size of a member's header are read,
and no member is unpacked: the store writes the verified bytes under a name of its own making.
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
    """The result of an export.

    Attributes:
        num_objects: Objects in the bundle.
        num_bytes: Bytes of the objects.
        num_skipped: Objects that were gone or unsound.
    """

    num_objects: int
    num_bytes: int
    num_skipped: int


@attrs.frozen
class ImportReport:
    """The result of an import.

    Attributes:
        num_written: Objects that are new in the store.
        num_bytes: Bytes of the new objects.
        num_present: Objects that the store had already.
        num_left: Objects that were not imported, after a refusal by the store.
        refusal: The store's refusal; None if the store took all objects.
    """

    num_written: int
    num_bytes: int
    num_present: int
    num_left: int = 0
    refusal: WriteOutcome | None = None


# -- export --------------------------------------------------------------------------------


def export_objects(store: ColdStore, names: Sequence[ObjectName], path: Path) -> ExportReport:
    """Write objects into a new file, in their order; the file has the prompts' token ids.

    Args:
        store: Store of the objects.
        names: Objects to export, ancestors before descendants.
        path: The new file; a failed export leaves no file.

    Raises:
        OSError: The file exists or cannot be written.
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
    """The place of an object in a bundle."""

    name: ObjectName
    offset: int
    num_bytes: int


def import_bundle(store: ColdStore, path: Path) -> ImportReport:
    """Write a bundle's objects into a store, in their order.

    All headers of the bundle are checked before the first object is written, and each object
    is verified before its write. The first refusal by the store ends the import.

    Raises:
        BundleError: The file is no bundle, or an object in it is unsound.
        OSError: The file cannot be read, or the store cannot be written.
    """
    with interrupts.deferred(), path.open("rb") as file:
        members = _members(path, file)
        return _import(store, path, file, members)


def _import(
    store: ColdStore, path: Path, file: BinaryIO, members: Sequence[_Member]
) -> ImportReport:
    # stamped like one chain: later objects of the file are evicted first
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
    # objects that were present before must not be older than their descendants
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
            raise BundleError(path, f"{member.name.file_name} is in the bundle twice")
        names.add(member.name)
    if not members:
        raise BundleError(path, "the bundle is empty: `neve cache export` makes bundles")
    return members


def _walk(path: Path, file: BinaryIO) -> Iterator[_Member]:
    """Find each member from its header alone; extensions of the tar format are refused.

    So a header is always one block of 512 bytes, and a name never exceeds the header's field.
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
    """Return a member's header; None at the end of the archive."""
    file.seek(offset)
    block = file.read(_BLOCK)
    if block == bytes(_BLOCK):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "ascii", "replace")
    except tarfile.HeaderError as error:
        raise BundleError(path, f"the file is no bundle: {error} at byte {offset}") from error


def _member(path: Path, header: tarfile.TarInfo, offset: int) -> _Member:
    name = ObjectName.parse(header.name) if header.type in _FILES else None
    if name is None:
        raise BundleError(path, f"members must be cold objects, got {header.name[:100]!r}")
    if not 0 < header.size <= MAX_OBJECT_BYTES:
        raise BundleError(
            path,
            f"{name.file_name} must have 1 to {MAX_OBJECT_BYTES} bytes, not {header.size}",
        )
    return _Member(name, offset, header.size)
