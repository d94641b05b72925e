from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.store.directory import StoreDirectory
from neve.coldtier.store.files import (
    facts_of,
    open_shard,
    publish,
    read_object,
    scan,
    temporary,
)

MakeName = Callable[..., ObjectName]
PathOf = Callable[[ObjectName], Path]


@pytest.fixture
def objects(root: Path) -> Iterator[int]:
    directory = StoreDirectory(root)
    yield directory.objects
    directory.close()


def write(objects: int, name: ObjectName, parts: list[bytes], stamp_ns: int = 5) -> None:
    with open_shard(objects, name) as shard, temporary(shard, name, parts, stamp_ns) as temp:
        publish(shard, temp, name)


def temp_name(name: ObjectName, pid: int, tick: int) -> str:
    return f".{name.key.hex()}.{pid}.{tick}.tmp"


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_an_object_lies_in_its_shard(
    objects: int, make_name: MakeName, path_of: PathOf
) -> None:
    """CT-5: its file has its bytes, its last use as time, and mode 0600."""
    name = make_name(0, ColdGroup.CONV_STATE)
    write(objects, name, [b"head", b"", bytearray(b"-"), b"tail"])  # type: ignore[list-item]
    facts = path_of(name).stat()

    assert path_of(name).read_bytes() == b"head-tail"
    assert (facts.st_mtime_ns, facts.st_mode & 0o777) == (5, 0o600)
    assert list(scan(objects)) == [(name, 9, 5)]


def test_short_writes_are_continued(
    objects: int, make_name: MakeName, path_of: PathOf, monkeypatch
) -> None:
    """CT-5: whatever one system call takes, all bytes arrive, in order."""
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, pieces: writev(fd, [pieces[0][:3]]))
    parts = [bytes([i]) * i for i in range(12)]
    write(objects, make_name(0), parts)

    assert path_of(make_name(0)).read_bytes() == b"".join(parts)


def test_more_pieces_than_one_call_takes(
    objects: int, make_name: MakeName, path_of: PathOf
) -> None:
    """CT-5: an object may have any number of pieces."""
    parts = [i.to_bytes(2, "big") for i in range(3000)]
    write(objects, make_name(0), parts)

    assert path_of(make_name(0)).read_bytes() == b"".join(parts)


def test_what_is_not_published_goes(objects: int, make_name: MakeName, root: Path) -> None:
    """CT-5: an error between write and rename leaves no file."""
    name = make_name(0)
    with (
        pytest.raises(RuntimeError),
        open_shard(objects, name) as shard,
        temporary(shard, name, [b"x"], 5),
    ):
        raise RuntimeError

    assert [p for p in (root / "objects").rglob("*") if p.is_file()] == []


def test_a_read_is_bounded(objects: int, make_name: MakeName) -> None:
    """CT-3: of a file that is too large, one byte too many is read and no more."""
    name = make_name(0)
    write(objects, name, [b"0123456789"])

    assert read_object(objects, name, 10).data == b"0123456789"
    assert read_object(objects, name, 4).data == b"01234"
    facts = facts_of(objects, name)
    assert facts is not None
    assert read_object(objects, name, 4).identity == facts.identity


def test_short_reads_are_continued(objects: int, make_name: MakeName, monkeypatch) -> None:
    """CT-3: whatever one system call gives, the whole file is returned."""
    read = os.read
    write(objects, make_name(0), [b"0123456789"])
    monkeypatch.setattr(os, "read", lambda fd, num_bytes: read(fd, min(num_bytes, 3)))

    assert read_object(objects, make_name(0), 99).data == b"0123456789"


def test_only_regular_files_are_objects(
    objects: int, make_name: MakeName, path_of: PathOf, tmp_path: Path
) -> None:
    """CT-8: a pipe, a folder or a link under an object's name is no object."""
    pipe, folder, link = (make_name(i) for i in range(3))
    (tmp_path / "secret").write_bytes(b"secret")
    for name in (pipe, folder, link):
        path_of(name).parent.mkdir(exist_ok=True)
    os.mkfifo(path_of(pipe))
    path_of(folder).mkdir()
    path_of(link).symlink_to(tmp_path / "secret")

    for name in (pipe, folder, link):
        assert facts_of(objects, name) is None
        with pytest.raises(OSError, match=r"regular|symbolic|directory"):
            read_object(objects, name, 99)
    assert list(scan(objects)) == []


def test_a_shard_that_is_a_link_is_not_entered(
    objects: int, make_name: MakeName, path_of: PathOf, tmp_path: Path
) -> None:
    """CT-8: a link in a shard's place makes that shard unavailable, and nothing else."""
    inside, outside = make_name(0), make_name(1)
    write(objects, outside, [b"x"])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / inside.file_name).write_bytes(b"secret")
    path_of(inside).parent.symlink_to(tmp_path / "elsewhere")

    assert facts_of(objects, inside) is None
    assert list(scan(objects)) == [(outside, 1, 5)]
    with pytest.raises(OSError, match=r"directory|symbolic"):
        write(objects, inside, [b"x"])


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_stands_in_an_objects_way_gives_way(
    objects: int, make_name: MakeName, path_of: PathOf, tmp_path: Path, kind: str
) -> None:
    """CT-7: a folder is renamed aside with all that is in it; a link's target stays."""
    name, target = make_name(0), tmp_path / "target"
    target.write_bytes(b"mine")
    path_of(name).parent.mkdir()
    if kind == "folder":
        path_of(name).mkdir()
        (path_of(name) / "thesis.txt").write_text("mine")
    elif kind == "link":
        path_of(name).symlink_to(target)
    else:
        os.mkfifo(path_of(name))
    write(objects, name, [b"x"])

    assert path_of(name).read_bytes() == b"x"
    assert target.read_bytes() == b"mine"
    aside = list(path_of(name).parent.glob(".*.aside/thesis.txt"))
    assert [p.read_text() for p in aside] == ["mine"] * (kind == "folder")


def test_foreign_files_do_not_count(
    objects: int, make_name: MakeName, path_of: PathOf, root: Path
) -> None:
    """CT-8: what has no object's name, or lies in another's shard, is left alone."""
    name = make_name(0)
    shard = path_of(name).parent
    shard.mkdir()
    wrong = root / "objects" / ("00" if shard.name != "00" else "01")
    wrong.mkdir()
    foreign = [
        shard / "notes.txt",
        shard / name.file_name.upper(),
        shard / f".{name.file_name}",
        shard / f"{name.key.hex()}.other.safetensors",
        wrong / name.file_name,
        root / "objects" / name.file_name,
    ]
    for path in foreign:
        path.write_bytes(b"mine")

    assert list(scan(objects)) == []
    assert all(path.read_bytes() == b"mine" for path in foreign)


def test_dead_writers_are_cleaned_up_after(
    objects: int, make_name: MakeName, path_of: PathOf
) -> None:
    """CT-5: temporary files go if their process is dead or has had an hour; no others do."""
    name, now_ns, hour_ns = make_name(0), time.time_ns(), 3600 * 10**9
    shard = path_of(name).parent
    shard.mkdir()
    gone = [
        temp_name(name, dead_pid(), now_ns),
        temp_name(name, os.getpid(), now_ns - 2 * hour_ns),
    ]
    kept = [
        temp_name(name, os.getpid(), now_ns),
        temp_name(name, os.getpid(), now_ns + 2 * hour_ns),
        f".{name.key.hex()}.{dead_pid()}.tmp",
        temp_name(name, dead_pid(), now_ns)[1:],
        f".{'x' * 64}.{dead_pid()}.{now_ns}.tmp",
    ]
    for file_name in (*gone, *kept):
        (shard / file_name).write_bytes(b"half")

    assert list(scan(objects)) == []
    assert {p.name for p in shard.iterdir()} == set(kept)
