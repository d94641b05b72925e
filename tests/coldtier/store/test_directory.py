from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neve.coldtier.store.directory import MARKER, StoreDirectory
from neve.errors import StoreUnavailableError

Open = Callable[[Path], StoreDirectory]


@pytest.fixture
def open_directory() -> Iterator[Open]:
    """Return a function that opens a store's folder; it is closed at the end."""
    opened: list[StoreDirectory] = []

    def run(root: Path) -> StoreDirectory:
        opened.append(StoreDirectory(root))
        return opened[-1]

    yield run
    for directory in opened:
        directory.close()


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time and content of all that lies under a folder."""
    found: dict[str, tuple[int, int, bytes]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        facts = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(facts.st_mode) else b""
        found[str(path)] = (facts.st_mode, facts.st_mtime_ns, content)
    return found


def refusal(root: Path) -> str:
    """Return why a root is refused; it must be left as it was."""
    before = snapshot(root.parent)
    with pytest.raises(StoreUnavailableError) as caught:
        StoreDirectory(root)
    assert snapshot(root.parent) == before
    return caught.value.reason


def num_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_fresh_store_is_private(tmp_path: Path, open_directory: Open) -> None:
    """CT-8: every folder that is made has mode 0700, every file 0600."""
    root = tmp_path / "a" / "b"
    open_directory(root)

    assert {p.name for p in root.iterdir()} == {MARKER, "lock", "usage", "objects"}
    assert json.loads((root / MARKER).read_text()) == {"format": "neve-cold-v1"}
    assert [mode_of(p) for p in (tmp_path / "a", root, root / "objects")] == [0o700] * 3
    assert [mode_of(root / n) for n in (MARKER, "lock", "usage")] == [0o600] * 3


def test_a_store_opens_again(root: Path, open_directory: Open) -> None:
    """CT-8: a store that is there is used as it is, also by two at a time."""
    open_directory(root)
    before = snapshot(root)
    open_directory(root)

    assert snapshot(root) == before


def test_an_empty_private_folder_becomes_a_store(root: Path, open_directory: Open) -> None:
    """CT-8: so does one in which another process has just begun to make one."""
    root.mkdir(mode=0o700)
    (root / "lock").touch()
    (root / f".{MARKER}.tmp").write_text("{")
    open_directory(root)

    assert json.loads((root / MARKER).read_text()) == {"format": "neve-cold-v1"}


def test_a_foreign_folder_is_left_alone(root: Path) -> None:
    """CT-8: a folder with something else in it is refused, byte for byte untouched."""
    (root / "objects").mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    (root / "objects" / "thesis.txt").write_text("mine")

    assert "no store of neve" in refusal(root)


@pytest.mark.parametrize(
    "marker", ['{"format": "neve-cold-v2"}', "", "[]", "[" * 4000, '{"format": 1}']
)
def test_another_format_is_left_alone(root: Path, marker: str) -> None:
    """CT-8: a store of a newer neve, or with a damaged marker, is refused and untouched."""
    root.mkdir(mode=0o700)
    (root / MARKER).write_text(marker)

    assert "has the format" in refusal(root)


def test_a_loose_mode_is_refused(root: Path) -> None:
    """CT-8: a root that others may enter is refused, and the sentence says what helps."""
    root.mkdir(mode=0o700)
    root.chmod(0o750)

    assert "chmod 700" in refusal(root)


def test_a_root_of_another_user_is_refused(root: Path, monkeypatch) -> None:
    """CT-8: the root must belong to the effective user."""
    root.mkdir(mode=0o700)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    assert "another user" in refusal(root)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_place_of_the_root_is_refused(tmp_path: Path, dangling: bool) -> None:
    """CT-8: the root is never followed, not even to a store of ours."""
    target = tmp_path / "target"
    if not dangling:
        StoreDirectory(target).close()
    (tmp_path / "cold").symlink_to(target)

    refusal(tmp_path / "cold")


def test_a_link_below_the_deepest_existing_folder_is_refused(tmp_path: Path) -> None:
    """CT-8: where a folder would have to be made, a link is not followed."""
    (tmp_path / "a").symlink_to(tmp_path / "nowhere")

    refusal(tmp_path / "a" / "cold")
    assert not (tmp_path / "nowhere").exists()


def test_links_above_are_the_users_own(tmp_path: Path, open_directory: Open) -> None:
    """CT-8: a path that exists may go through links, as `/tmp` does on macOS."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    open_directory(tmp_path / "link" / "cold")

    assert (tmp_path / "real" / "cold" / MARKER).is_file()


@pytest.mark.parametrize("name", ["objects", "lock", "usage", MARKER])
def test_a_link_inside_the_root_is_refused(root: Path, tmp_path: Path, name: str) -> None:
    """CT-8: nothing of the store's own is followed either."""
    StoreDirectory(root).close()
    (root / name).rename(tmp_path / "elsewhere")
    (root / name).symlink_to(tmp_path / "elsewhere")

    refusal(root)


@pytest.mark.parametrize("name", ["lock", "usage", MARKER])
def test_only_regular_files_are_opened(root: Path, name: str) -> None:
    """CT-8: a pipe in a file's place is refused, and nobody waits for its other end."""
    StoreDirectory(root).close()
    (root / name).unlink()
    os.mkfifo(root / name)

    assert "no regular file" in refusal(root)


def test_a_file_in_place_of_the_root_is_refused(root: Path) -> None:
    """CT-8: only a folder can be a store."""
    root.write_text("mine")

    assert "Not a directory" in refusal(root)


def test_a_folder_that_cannot_be_written_is_unavailable(root: Path, monkeypatch) -> None:
    """CT-7: a read-only folder is a reason, not a crash."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)

    assert "Permission denied" in refusal(root)


def test_no_descriptor_is_left_open(root: Path) -> None:
    """CT-8: neither a refused store nor a closed one keeps a descriptor."""
    before = num_descriptors()
    StoreDirectory(root).close()
    (root / "usage").unlink()
    (root / "usage").mkdir()
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            StoreDirectory(root)

    assert num_descriptors() == before


def test_the_lock_keeps_others_out(root: Path, open_directory: Open) -> None:
    """CT-9: one holds it at a time, and nobody waits for ever."""
    ours, theirs = open_directory(root), open_directory(root)
    with ours.lock(), pytest.raises(TimeoutError), theirs.lock(timeout_s=0.02):
        pass

    with theirs.lock(timeout_s=0):
        pass


def test_the_lock_is_an_flock(root: Path, open_directory: Open) -> None:
    """CT-9: it goes with the process that holds it, however that ends."""
    directory = open_directory(root)
    with (root / "lock").open("r+") as file, directory.lock(), pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_deleted_store_cannot_be_locked(root: Path, open_directory: Open) -> None:
    """CT-9: whoever holds the lock of a deleted store excludes nobody, so nobody gets it."""
    directory = open_directory(root)
    (root / "lock").unlink()

    with pytest.raises(FileNotFoundError), directory.lock():
        pass


def test_a_closed_directory_fails_softly(root: Path) -> None:
    """CT-7: what comes too late meets an OSError, which every caller expects."""
    directory = StoreDirectory(root)
    directory.close()
    directory.close()

    with pytest.raises(OSError, match="closed"), directory.lock():
        pass
    with pytest.raises(OSError, match="Bad file descriptor"):
        directory.free_bytes()
