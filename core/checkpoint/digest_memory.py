"""A memory of file digests, so that unchanged weight files are hashed only once."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

import attrs
from attrs import validators

from ..files import replace_file
from ..structuring import strict_converter, structure
from .strict_json import parse_object

MAX_REMEMBERED = 1000
_SETTLED_NS = 2_000_000_000
_FORMAT = "neve-digests-v1"
_MAX_BYTES = 1 << 20  # a thousand entries need a quarter

_CONVERTER = strict_converter(forbid_extra_keys=True)


@attrs.frozen
class FileIdentity:
    """A file's facts from `stat`; they change with every write to the file.

    Attributes:
        device: Device number.
        inode: Inode number.
        size: Length, in bytes.
        mtime_ns: Time of the last modification.
        ctime_ns: Time of the last change of the inode. Tools that unpack or copy files can
            set the modification time, and inode numbers are reused, but no tool can set this
            time.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, file: Path | os.stat_result) -> Self:
        """Return the identity of a file, through symbolic links.

        Raises:
            OSError: There is no such file.
        """
        found = file.stat() if isinstance(file, Path) else file
        return cls(
            found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        )

    def is_settled(self, now_ns: int) -> bool:
        """Return whether every write after `now_ns` changes the identity.

        File times may be as coarse as two seconds. A file that is written, identified and
        written again within one tick keeps its identity.
        """
        return now_ns - max(self.mtime_ns, self.ctime_ns) >= _SETTLED_NS


@attrs.frozen
class _Digest:
    identity: FileIdentity
    sha256: str = attrs.field(validator=validators.matches_re(r"[0-9a-f]{64}"))


@attrs.frozen
class _Content:
    format: str = attrs.field(validator=validators.in_([_FORMAT]))
    files: list[_Digest]


def _read_own(path: Path) -> bytes:
    """Return a file's content if the file is regular, ours, and writable by no other user."""
    # NOTE: opening a FIFO would wait for its writer
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        writable = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or writable:
            raise PermissionError(f"{path} is not a file of our own")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(_MAX_BYTES + 1)
    finally:
        os.close(descriptor)


@attrs.frozen
class DigestMemory:
    """Digests of files that were read in full, kept in a small JSON file.

    The memory only saves time. A file that cannot be read, or was not written by this module
    for this user, counts as an empty memory; a failed write loses the entry. Processes that
    write at the same time may lose each other's entries.

    Attributes:
        path: The file; it and its folder need not exist.
    """

    path: Path

    def recall(self) -> dict[FileIdentity, bytes]:
        """Return the SHA-256 of every remembered file, the oldest entry first."""
        try:
            data = _read_own(self.path)
            if len(data) > _MAX_BYTES:
                return {}
            content = structure(parse_object(data), _Content, _CONVERTER)
        except (OSError, ValueError):  # JSONError and SettingsError are ValueErrors
            return {}
        return {entry.identity: bytes.fromhex(entry.sha256) for entry in content.files}

    def remember(self, identity: FileIdentity, sha256: bytes) -> None:
        """Add one file; beyond `MAX_REMEMBERED` files the oldest entry is dropped."""
        known = self.recall()
        known.pop(identity, None)
        known[identity] = sha256
        newest = list(known.items())[-MAX_REMEMBERED:]
        content = _Content(_FORMAT, [_Digest(key, value.hex()) for key, value in newest])
        with suppress(OSError):
            replace_file(self.path, json.dumps(attrs.asdict(content)).encode())
