"""Which files were read in full before, and what their digests were."""

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
_MAX_BYTES = 1 << 20  # a thousand entries take a quarter of it

_CONVERTER = strict_converter(forbid_extra_keys=True)


@attrs.frozen
class FileIdentity:
    """What stat says of a file; equal for as long as nobody has written to it.

    Attributes:
        device: Device number.
        inode: Inode number.
        size: Length, in bytes.
        mtime_ns: Time of the last modification.
        ctime_ns: Time of the last change of the inode. Tools that unpack or copy set the
            modification time to what they please, and inodes are used again; this one
            cannot be set.
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
        """Return whether a write after `now_ns` is sure to change the identity.

        File systems keep times no finer than up to two seconds: a file that is written to,
        identified and written to again within one tick looks the same both times.
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
    """Return a file's content if it is a regular file that only its owner, we, can write."""
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
    """Digests of files that were read in full before, in a small JSON file.

    It is a convenience and nothing depends on it: what cannot be read, or was not written
    by this module for this user, is an empty memory, and what cannot be written is
    forgotten. Processes that write at the same time may lose each other's entries.

    Attributes:
        path: The file; it and its folder need not exist.
    """

    path: Path

    def recall(self) -> dict[FileIdentity, bytes]:
        """Return the SHA-256 of every file that is remembered, the oldest entry first."""
        try:
            data = _read_own(self.path)
            if len(data) > _MAX_BYTES:
                return {}
            content = structure(parse_object(data), _Content, _CONVERTER)
        except (OSError, ValueError):  # JSONError and SettingsError are ValueErrors
            return {}
        return {entry.identity: bytes.fromhex(entry.sha256) for entry in content.files}

    def remember(self, identity: FileIdentity, sha256: bytes) -> None:
        """Add one file to what is remembered by now; beyond 1000 the oldest is dropped."""
        known = self.recall()
        known.pop(identity, None)
        known[identity] = sha256
        newest = list(known.items())[-MAX_REMEMBERED:]
        content = _Content(_FORMAT, [_Digest(key, value.hex()) for key, value in newest])
        with suppress(OSError):
            replace_file(self.path, json.dumps(attrs.asdict(content)).encode())
