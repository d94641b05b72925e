"""Files of cold objects, each in a shard named by the first byte of its key.

All functions take the descriptor of the folder of objects and follow no link inside.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING

import attrs

from ..objects.keys import ObjectName
from .directory import closing, make_folder, open_file, open_folder

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SHARD = re.compile("[0-9a-f]{2}")
_TEMP = re.compile(r"\.[0-9a-f]{64}\.(\d{1,10})\.(\d{1,20})\.tmp")
_TEMP_MAX_AGE_NS = 3600 * 10**9
_NO_SHARD = {errno.ENOTDIR, errno.ELOOP, errno.ENOENT, errno.EACCES}
_MAX_PIECES = 1024  # IOV_MAX of Linux and macOS


@attrs.frozen
class FileFacts:
    """Facts of the file system about an object.

    Attributes:
        num_bytes: Size of the file.
        stamp_ns: Modification time, which records the object's last use.
        identity: Device and inode.
    """

    num_bytes: int
    stamp_ns: int
    identity: tuple[int, int]


@attrs.frozen
class StoredObject:
    """Bytes of an object, not verified yet.

    Attributes:
        data: The object's bytes; of a larger object, one byte more than the bound.
        identity: Device and inode of the file.
    """

    data: bytes
    identity: tuple[int, int]


def shard_of(name: ObjectName) -> str:
    """Return the name of the folder with an object's file."""
    return name.key[:1].hex()


def facts_of(objects: int, name: ObjectName) -> FileFacts | None:
    """Return the facts of an object; None if there is no regular file of its name."""
    with suppress(OSError), closing(open_folder(shard_of(name), objects)) as shard:
        return _facts(os.lstat(name.file_name, dir_fd=shard))
    return None


def _facts(found: os.stat_result) -> FileFacts | None:
    if not stat.S_ISREG(found.st_mode):
        return None
    return FileFacts(found.st_size, found.st_mtime_ns, (found.st_dev, found.st_ino))


def read_object(objects: int, name: ObjectName, max_bytes: int) -> StoredObject:
    """Read an object, at most one byte more than `max_bytes`.

    Raises:
        OSError: The file cannot be read or is not regular.
    """
    with closing(open_folder(shard_of(name), objects)) as shard:
        descriptor = open_file(name.file_name, os.O_RDONLY, shard)
    with closing(descriptor):
        found = os.fstat(descriptor)
        data = _read(descriptor, min(found.st_size, max_bytes + 1))
    return StoredObject(data, (found.st_dev, found.st_ino))


def _read(descriptor: int, num_bytes: int) -> bytes:
    data = os.read(descriptor, num_bytes)
    while len(data) < num_bytes:
        more = os.read(descriptor, num_bytes - len(data))
        if not more:
            break
        data += more
    return data


def read_heads(
    objects: int, names: Iterable[ObjectName], num_bytes: int
) -> Iterator[tuple[ObjectName, bytes]]:
    """Read the first bytes of objects, shard by shard.

    Args:
        objects: Descriptor of the folder of objects.
        names: Objects to read.
        num_bytes: Bytes to read of each.

    Yields:
        Name and bytes; no bytes if the file cannot be read.
    """
    for group in by_shard(names):
        try:
            shard = open_folder(shard_of(group[0]), objects)
        except OSError:
            yield from ((name, b"") for name in group)
            continue
        with closing(shard):
            for name in group:
                yield name, _read_head(shard, name, num_bytes)


def by_shard(names: Iterable[ObjectName]) -> Iterator[list[ObjectName]]:
    """Return objects in groups, one group for each shard."""
    ordered = sorted(names, key=lambda name: name.key)
    return (list(group) for _, group in groupby(ordered, key=lambda name: name.key[0]))


def _read_head(shard: int, name: ObjectName, num_bytes: int) -> bytes:
    with (
        suppress(OSError),
        closing(open_file(name.file_name, os.O_RDONLY, shard)) as descriptor,
    ):
        return os.read(descriptor, num_bytes)
    return b""


def unlink_object(objects: int, name: ObjectName) -> None:
    """Remove an object's file.

    Raises:
        OSError: The file cannot be removed.
    """
    with closing(open_folder(shard_of(name), objects)) as shard:
        os.unlink(name.file_name, dir_fd=shard)


def unlink_objects(
    objects: int, names: Sequence[ObjectName]
) -> list[tuple[ObjectName, int | None]]:
    """Remove objects of one shard; an object that cannot be removed stays.

    Returns:
        The absent objects with their former bytes; None for an object that did not exist.
    """
    try:
        shard = open_folder(shard_of(names[0]), objects)
    except FileNotFoundError:
        return [(name, None) for name in names]
    except OSError:
        return []
    gone: list[tuple[ObjectName, int | None]] = []
    with closing(shard):
        for name in names:
            with suppress(OSError):
                gone.append((name, _unlink(shard, name.file_name)))
    return gone


def _unlink(shard: int, file_name: str) -> int | None:
    """Remove a file and return its size; None if there is no regular file of that name."""
    try:
        facts = _facts(os.lstat(file_name, dir_fd=shard))
    except FileNotFoundError:
        return None
    if facts is None:
        return None
    os.unlink(file_name, dir_fd=shard)
    return facts.num_bytes


def stamp_object(objects: int, name: ObjectName, stamp_ns: int) -> None:
    """Write an object's last use to its file.

    Raises:
        OSError: The time cannot be written.
    """
    times = (stamp_ns, stamp_ns)
    with closing(open_folder(shard_of(name), objects)) as shard:
        os.utime(name.file_name, ns=times, dir_fd=shard, follow_symlinks=False)


@contextmanager
def open_shard(objects: int, name: ObjectName) -> Generator[int]:
    """Open the folder of an object, creating a missing one."""
    with closing(make_folder(shard_of(name), objects)) as shard:
        yield shard


@contextmanager
def temporary(
    shard: int, name: ObjectName, parts: Sequence[Buffer], stamp_ns: int
) -> Generator[str]:
    """Write an object under a temporary name; the file is removed at exit unless renamed.

    Yields:
        The temporary file's name; its content is durable.
    """
    temp = f".{name.key.hex()}.{os.getpid()}.{time.time_ns()}.tmp"
    try:
        with closing(
            open_file(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, shard)
        ) as descriptor:
            _write(descriptor, parts)
            os.utime(descriptor, ns=(stamp_ns, stamp_ns))
            # fsync(2), on macOS too: flushing the drive's own cache (F_FULLFSYNC) takes ten
            # times as long and helps only in a power cut. A power cut then costs objects and
            # nothing else, because every read verifies the bytes.
            os.fsync(descriptor)
        yield temp
    finally:
        with suppress(OSError):
            os.unlink(temp, dir_fd=shard)


def _write(descriptor: int, parts: Sequence[Buffer]) -> None:
    views = [memoryview(part) for part in parts]
    pieces = [view.cast("B") for view in views if view.nbytes]
    while pieces:
        written = os.writev(descriptor, pieces[:_MAX_PIECES])
        while pieces and written >= pieces[0].nbytes:
            written -= pieces.pop(0).nbytes
        if written:
            pieces[0] = pieces[0][written:]


def publish(shard: int, temp: str, name: ObjectName) -> None:
    """Rename a temporary file to its object's name; a folder in its place is moved aside."""
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.lstat(name.file_name, dir_fd=shard).st_mode):
            aside = temp.removesuffix(".tmp") + ".aside"
            os.rename(name.file_name, aside, src_dir_fd=shard, dst_dir_fd=shard)
    os.rename(temp, name.file_name, src_dir_fd=shard, dst_dir_fd=shard)


def scan(objects: int) -> Iterator[tuple[ObjectName, int, int]]:
    """Find every object, and remove the temporary files of dead writers.

    Other files stay and do not count.

    Yields:
        Name, bytes and modification time in nanoseconds.
    """
    for shard_name in os.listdir(objects):
        if _SHARD.fullmatch(shard_name) is None:
            continue
        try:
            shard = open_folder(shard_name, objects)
        except OSError as error:
            if error.errno not in _NO_SHARD:
                raise
            continue
        with closing(shard):
            yield from _scan_shard(shard, shard_name)


def _scan_shard(shard: int, shard_name: str) -> Iterator[tuple[ObjectName, int, int]]:
    with os.scandir(shard) as entries:
        for entry in entries:
            name = ObjectName.parse(entry.name)
            if name is None:
                _sweep(shard, entry.name)
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode) and entry.name.startswith(shard_name):
                yield name, found.st_size, found.st_mtime_ns


def _sweep(shard: int, file_name: str) -> None:
    """Remove a temporary file if its writer is dead or the file is older than an hour."""
    match = _TEMP.fullmatch(file_name)
    if match is None:
        return
    if time.time_ns() - int(match[2]) > _TEMP_MAX_AGE_NS or not _is_alive(int(match[1])):
        with suppress(OSError):
            os.unlink(file_name, dir_fd=shard)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
