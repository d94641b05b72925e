"""The identity of a checkpoint's weights: a digest of every byte of every file.

Two finetunes of one model share file names, sizes and often most of their content. Only a
digest of every byte tells their caches apart. The first digest takes as long as reading all
files from disk; a memory of digests saves later loads the time.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import attrs

from ..errors import CheckpointError, WeightsChangedError
from .digest_memory import DigestMemory, FileIdentity
from .shard_index import INDEX_NAME, find_shards

CHUNK_BYTES = 1 << 20
_TAG = b"neve-weights-v1"


def weight_files(path: Path) -> tuple[Path, ...]:
    """Return every file of a checkpoint's weights, sorted by name.

    Args:
        path: A checkpoint directory, or a GGUF file.

    Raises:
        CheckpointError: A shard is missing or stray, or the index is malformed.
    """
    index = path / INDEX_NAME
    try:
        if not path.is_dir():
            return (path,)
        files = {*find_shards(path), *([index] if index.is_file() else [])}
    except OSError as error:
        raise _unreadable(path, error) from error
    return tuple(sorted(files, key=lambda file: file.name))


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: the weights cannot be read in full: {error}")


def _expect(path: Path, identity: FileIdentity, found: os.stat_result) -> None:
    if FileIdentity.of(found) != identity:
        raise WeightsChangedError(path)


@attrs.define
class _Reading:
    """One pass over all files: its progress, and the callbacks of its caller."""

    num_bytes: int
    progress: Callable[[int, int], None] | None
    cancelled: Callable[[], bool]
    done_bytes: int = 0

    def advance(self, num_bytes: int) -> None:
        self.done_bytes += num_bytes
        if self.progress is not None:
            self.progress(self.done_bytes, self.num_bytes)


def _read_in_full(path: Path, identity: FileIdentity, reading: _Reading) -> bytes | None:
    """Return the SHA-256 of a file's whole content; None if cancelled."""
    sha256 = hashlib.sha256()
    chunk = memoryview(bytearray(CHUNK_BYTES))
    left = identity.size
    with path.open("rb", buffering=0) as file:
        _expect(path, identity, os.fstat(file.fileno()))
        while num_bytes := file.readinto(chunk):
            if reading.cancelled():
                return None
            left -= num_bytes
            if left < 0:  # the file grows, and may do so faster than the reads
                raise WeightsChangedError(path)
            sha256.update(chunk[:num_bytes])
            reading.advance(num_bytes)
        _expect(path, identity, os.fstat(file.fileno()))
        # the open file keeps its inode number from being reused
        _expect(path, identity, path.stat())
    if left:
        raise WeightsChangedError(path)
    return sha256.digest()


def _never() -> bool:
    return False


@attrs.frozen
class WeightIdentity:
    """The identity of a checkpoint's files at the time of opening.

    To prove which weights were loaded: create the identity before the first weight is read,
    call `unchanged` after the last, and take the `digest` before or after, on any thread.

    Attributes:
        files: Each file of `weight_files` with its facts from `stat`.
    """

    files: Mapping[Path, FileIdentity]

    @classmethod
    def stat(cls, path: Path) -> Self:
        """Return the identity of a checkpoint's weight files; their content is not read.

        Raises:
            CheckpointError: A file is missing, stray, or its facts cannot be read.
        """
        files: dict[Path, FileIdentity] = {}
        for file in weight_files(path):
            try:
                files[file] = FileIdentity.of(file)
            except OSError as error:
                raise _unreadable(file, error) from error
        return cls(files)

    @property
    def num_bytes(self) -> int:
        """Total size of all files."""
        return sum(identity.size for identity in self.files.values())

    def unchanged(self) -> bool:
        """Return whether every file is unchanged since the opening."""
        try:
            return all(FileIdentity.of(path) == known for path, known in self.files.items())
        except OSError:
            return False

    def digest(
        self,
        memory: DigestMemory,
        progress: Callable[[int, int], None] | None = None,
        cancelled: Callable[[], bool] = _never,
    ) -> bytes | None:
        """Return 32 bytes that identify the content and the names of all files.

        Folders do not enter, so a checkpoint may be moved or linked to.

        Args:
            memory: Digests of files that need not be read again.
            progress: Called with the bytes done and the total bytes.
            cancelled: Called once a file and once a chunk; True ends the pass.

        Returns:
            The digest; None if cancelled.

        Raises:
            WeightsChangedError: A file was replaced, or is being written.
            CheckpointError: A file cannot be read, or all files are empty.
        """
        if self.num_bytes == 0:
            raise CheckpointError("the weight files are empty: there is nothing to identify")
        known = memory.recall()
        reading = _Reading(self.num_bytes, progress, cancelled)
        whole = hashlib.sha256(_framed(_TAG, len(self.files)))
        for path, identity in self.files.items():
            if cancelled():
                return None
            sha256 = _file_digest(path, identity, reading, memory, known.get(identity))
            if sha256 is None:
                return None
            whole.update(_framed(os.fsencode(path.name), identity.size) + sha256)
        return whole.digest()


def _framed(name: bytes, number: int) -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<Q", number)


def _file_digest(
    path: Path,
    identity: FileIdentity,
    reading: _Reading,
    memory: DigestMemory,
    remembered: bytes | None,
) -> bytes | None:
    try:
        if remembered is not None:
            _expect(path, identity, path.stat())
            reading.advance(identity.size)
            return remembered
        began_ns = time.time_ns()
        sha256 = _read_in_full(path, identity, reading)
    except OSError as error:
        raise _unreadable(path, error) from error
    # A file that may still change within the same tick of its times is not remembered.
    if sha256 is not None and identity.is_settled(began_ns):
        memory.remember(identity, sha256)
    return sha256
