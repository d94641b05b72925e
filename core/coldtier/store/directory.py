"""The store's folder: opened safely, then held open by descriptors.

    root/ (0700)
      neve-cold-store.json    the marker: neve never writes into another folder without it
      lock                    the lock of every change to the store
      usage                   bytes written by all processes, see `quota`
      objects/<2 hex>/<file>  the cold objects

An attacker who swaps a part of the path for a link could make neve write or delete elsewhere.
So links are followed only in the part of the path that existed before, the root must be
private to the user, and all later operations are relative to held descriptors.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import StoreUnavailableError

MARKER = "neve-cold-store.json"
FORMAT = "neve-cold-v1"
LOCK_TIMEOUT_S = 10.0

_MARKER_TEMP = f".{MARKER}.tmp"
_MARKER_BYTES = 4096
_POLL_S = 0.001
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def closing(descriptor: int) -> Generator[int]:
    """Close a descriptor at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_folder(name: str, parent: int) -> int:
    """Open a folder inside another; a link is refused."""
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)


def open_file(name: str, flags: int, parent: int) -> int:
    """Open a regular file inside a folder without blocking; other file types are refused.

    Raises:
        OSError: The file cannot be opened or is not regular.
    """
    descriptor = os.open(name, flags | _FILE, 0o600, dir_fd=parent)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    if not regular:
        os.close(descriptor)
        raise OSError(f"{name} is no regular file")
    return descriptor


def make_folder(name: str, parent: int) -> int:
    """Open a folder inside another, creating a missing one."""
    with suppress(FileNotFoundError):
        return open_folder(name, parent)
    with suppress(FileExistsError):  # another process made the folder, or put a link there
        os.mkdir(name, 0o700, dir_fd=parent)
    os.fsync(parent)
    return open_folder(name, parent)


class StoreDirectory:
    """The held descriptors of one store.

    Attributes:
        root: The store's folder.
        objects: Descriptor of the folder of objects.
        usage: Descriptor of the file with the count of written bytes.
    """

    def __init__(self, root: Path) -> None:
        """Open the store in `root`, creating a missing one.

        Raises:
            StoreUnavailableError: The folder is not a store, not private or not writable; the
                folder's contents were not touched.
        """
        self.root = root
        self.objects = self.usage = self._lock = -1
        try:
            with closing(_open_root(root)) as folder:
                _check_private(root, folder)
                self._open(folder)
        except StoreUnavailableError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise StoreUnavailableError(f"{root}: {error.strerror or error}") from error

    def _open(self, folder: int) -> None:
        marked = _is_marked(self.root, folder)
        self._lock = open_file("lock", os.O_RDWR | os.O_CREAT, folder)
        with self.lock():
            if not marked and not _is_marked(self.root, folder):
                _mark(folder)
            self.objects = make_folder("objects", folder)
            self.usage = open_file("usage", os.O_RDWR | os.O_CREAT, folder)

    def close(self) -> None:
        """Close the descriptors; every later use fails."""
        for descriptor in (self.objects, self.usage, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self.objects = self.usage = self._lock = -1

    @contextmanager
    def lock(self, timeout_s: float = LOCK_TIMEOUT_S) -> Generator[None]:
        """Keep other processes from changing the store.

        The lock does not exclude threads of this process.

        Raises:
            TimeoutError: Another process, perhaps a stopped one, held the lock until the
                timeout.
            FileNotFoundError: The store was deleted.
        """
        if self._lock < 0:
            raise OSError(f"{self.root}: the store is closed")
        deadline = time.monotonic() + timeout_s
        while not _try_lock(self._lock):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self.root}: another process holds the lock")
            time.sleep(_POLL_S)
        try:
            if os.fstat(self._lock).st_nlink == 0:
                raise FileNotFoundError(f"{self.root}: the store was deleted")
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def total_bytes(self) -> int:
        """Return the file system's size."""
        facts = os.fstatvfs(self.objects)
        return facts.f_frsize * facts.f_blocks

    def free_bytes(self) -> int:
        """Return the bytes of the file system that are free for this user."""
        facts = os.fstatvfs(self.objects)
        return facts.f_frsize * facts.f_bavail


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_root(root: Path) -> int:
    """Open the root, creating the missing part of its path.

    Neither the root nor a folder created here may be a link, so a link put there meanwhile is
    refused.
    """
    root = root.absolute()
    missing = [root.name]
    ancestor = root.parent
    while True:
        with suppress(FileNotFoundError):
            descriptor = os.open(ancestor, _FOLDER)
            break
        missing.append(ancestor.name)
        ancestor = ancestor.parent
    for name in reversed(missing):
        with closing(descriptor):
            descriptor = make_folder(name, descriptor)
    return descriptor


def _check_private(root: Path, folder: int) -> None:
    facts = os.fstat(folder)
    if facts.st_uid != os.geteuid():
        raise StoreUnavailableError(f"{root} belongs to another user")
    mode = stat.S_IMODE(facts.st_mode)
    if mode & 0o077:
        raise StoreUnavailableError(
            f"{root} has mode {mode:04o}, open to other users: `chmod 700` makes it private"
        )


def _is_marked(root: Path, folder: int) -> bool:
    """Return whether the folder is a store; False for a folder that may become a store.

    Raises:
            StoreUnavailableError: The folder is neither a store of this format nor empty.
    """
    # Listed before the marker is opened: a process that creates a store writes the marker
    # before any file that an empty folder would not have.
    foreign = set(os.listdir(folder)) - {"lock", _MARKER_TEMP}
    try:
        marker = open_file(MARKER, os.O_RDONLY, folder)
    except FileNotFoundError:
        if foreign:
            raise StoreUnavailableError(
                f"{root} is not empty and no store of neve: choose another folder"
            ) from None
        return False
    with closing(marker):
        found = _format_of(os.read(marker, _MARKER_BYTES))
    if found != FORMAT:
        raise StoreUnavailableError(f"{root} has the format {found!r}, not {FORMAT!r}")
    return True


def _format_of(marker: bytes) -> object:
    try:
        return json.loads(marker)["format"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _mark(folder: int) -> None:
    """Write the marker atomically; needs the lock."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with closing(open_file(_MARKER_TEMP, flags, folder)) as temp:
        os.write(temp, json.dumps({"format": FORMAT}).encode())
        os.fsync(temp)
    os.rename(_MARKER_TEMP, MARKER, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)
