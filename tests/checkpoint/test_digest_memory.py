"""What is remembered of files that were read in full."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neve.checkpoint import digest_memory
from neve.checkpoint.digest_memory import MAX_REMEMBERED, DigestMemory, FileIdentity

IDENTITY = FileIdentity(device=1, inode=2, size=3, mtime_ns=4, ctime_ns=5)
SECOND_NS = 1_000_000_000


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


@pytest.fixture
def memory(tmp_path: Path) -> DigestMemory:
    return DigestMemory(tmp_path / "neve" / "digests.json")


def test_an_identity_is_what_stat_says(tmp_path: Path) -> None:
    """CT-4: a file's identity follows links and is the same by path and by stat."""
    file, link = tmp_path / "blob", tmp_path / "model.safetensors"
    file.write_bytes(b"abc")
    link.symlink_to(file)

    identity = FileIdentity.of(link)

    assert identity == FileIdentity.of(file) == FileIdentity.of(file.stat())
    assert identity.size == 3


def test_a_write_of_equal_length_with_the_old_time_is_seen(tmp_path: Path) -> None:
    """CT-4: who sets the modification time back has still changed the identity."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"abc")
    before, times = FileIdentity.of(file), file.stat()
    while True:  # until the clock of the file system has moved on
        file.write_bytes(b"xyz")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        after = FileIdentity.of(file)
        if after.ctime_ns != before.ctime_ns:
            break

    assert after != before
    assert attrs.evolve(after, ctime_ns=before.ctime_ns) == before


@pytest.mark.parametrize(
    ("mtime_s", "ctime_s", "settled"),
    [(0, 0, True), (98, 98, True), (99, 0, False), (0, 99, False), (500, 0, False)],
)
def test_what_was_written_just_now_is_not_settled(
    mtime_s: int, ctime_s: int, settled: bool
) -> None:
    """CT-4: within two seconds of a write, or of one in the future, another may go unseen."""
    identity = attrs.evolve(
        IDENTITY, mtime_ns=mtime_s * SECOND_NS, ctime_ns=ctime_s * SECOND_NS
    )

    assert identity.is_settled(100 * SECOND_NS) is settled


def test_what_is_remembered_is_recalled(memory: DigestMemory) -> None:
    """CT-4: a digest outlives its process, in a file that only its owner can read."""
    assert memory.recall() == {}

    memory.remember(IDENTITY, digest(7))

    assert DigestMemory(memory.path).recall() == {IDENTITY: digest(7)}
    assert memory.path.stat().st_mode & 0o777 == 0o600
    assert memory.path.parent.stat().st_mode & 0o777 == 0o700
    assert list(memory.path.parent.iterdir()) == [memory.path]


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(FileIdentity)])
def test_any_other_identity_is_unknown(memory: DigestMemory, field: str) -> None:
    """CT-4: a file is known by all that stat says of it, and by nothing less."""
    memory.remember(IDENTITY, digest(7))

    other = attrs.evolve(IDENTITY, **{field: getattr(IDENTITY, field) + 1})

    assert other not in memory.recall()


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=8))
def test_the_memory_is_a_bounded_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: list[tuple[int, int]]
) -> None:
    """CT-4: it holds the entries written last, each with its last digest."""
    monkeypatch.setattr(digest_memory, "MAX_REMEMBERED", 3)
    path = tmp_path / "digests.json"
    path.unlink(missing_ok=True)
    model: dict[FileIdentity, bytes] = {}
    for inode, number in entries:
        identity = attrs.evolve(IDENTITY, inode=inode)
        DigestMemory(path).remember(identity, digest(number))
        model.pop(identity, None)
        model[identity] = digest(number)

    assert list(DigestMemory(path).recall().items()) == list(model.items())[-3:]


def test_a_full_memory_can_be_read(
    memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CT-4: a thousand entries with the longest numbers fit; the oldest makes room."""
    largest = 2**64 - 1
    known = {
        FileIdentity(largest, inode, largest, largest, largest): digest(inode)
        for inode in range(largest, largest - MAX_REMEMBERED, -1)
    }
    with monkeypatch.context() as patch:
        patch.setattr(DigestMemory, "recall", lambda _: dict(known))
        memory.remember(IDENTITY, digest(1))

    assert list(memory.recall()) == [*list(known)[1:], IDENTITY]


def _content(**changes: object) -> bytes:
    entry = {"identity": attrs.asdict(IDENTITY), "sha256": digest(7).hex()}
    return json.dumps({"format": "neve-digests-v1", "files": [entry], **changes}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        _content(format="neve-digests-v2"),
        _content(files={}),
        _content(files=[1]),
        _content(files=[{"identity": attrs.asdict(IDENTITY), "sha256": "00"}]),
        _content(files=[{"identity": {"device": 1}, "sha256": digest(7).hex()}]),
        _content(files=[{"identity": attrs.asdict(IDENTITY), "sha256": "G" * 64}]),
        _content(more=1),
        _content() + b" " * (1 << 20),
    ],
)
def test_what_is_no_memory_is_an_empty_one(memory: DigestMemory, content: bytes) -> None:
    """CT-4: malformed content costs a reading of the weights, and is replaced."""
    memory.path.parent.mkdir()
    memory.path.write_bytes(_content())
    memory.path.chmod(0o600)

    assert memory.recall() == {IDENTITY: digest(7)}

    memory.path.write_bytes(content)

    assert memory.recall() == {}

    memory.remember(IDENTITY, digest(8))

    assert memory.recall() == {IDENTITY: digest(8)}


def test_a_file_that_others_can_write_is_not_believed(memory: DigestMemory) -> None:
    """CT-4: a digest is taken from nobody but the user."""
    memory.remember(IDENTITY, digest(7))
    memory.path.chmod(0o620)

    assert memory.recall() == {}


def test_a_link_or_a_pipe_is_no_memory(memory: DigestMemory) -> None:
    """CT-4: the memory is not looked for through links, nor does a pipe hold a load up."""
    memory.remember(IDENTITY, digest(7))
    kept = memory.path.rename(memory.path.with_name("elsewhere.json"))
    memory.path.symlink_to(kept)

    assert memory.recall() == {}

    memory.path.unlink()
    os.mkfifo(memory.path)

    assert memory.recall() == {}

    memory.remember(IDENTITY, digest(8))

    assert memory.recall() == {IDENTITY: digest(8)}
    assert DigestMemory(kept).recall() == {IDENTITY: digest(7)}


def test_what_cannot_be_written_is_forgotten(
    memory: DigestMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CT-4: a full or read-only disk costs a reading, and leaves nothing half-written."""
    memory.remember(IDENTITY, digest(7))

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    memory.remember(IDENTITY, digest(8))

    assert memory.recall() == {IDENTITY: digest(7)}
    assert list(memory.path.parent.iterdir()) == [memory.path]

    blocked = DigestMemory(memory.path / "digests.json")
    blocked.remember(IDENTITY, digest(8))

    assert blocked.recall() == {}


def test_writers_at_one_time_leave_a_whole_file(memory: DigestMemory) -> None:
    """CT-9: whoever wins, a reader finds the last writer's content, never a torn one."""

    def write(first: int) -> None:
        for inode in range(first, first + 10):
            memory.remember(attrs.evolve(IDENTITY, inode=inode), digest(inode))

    memory.remember(IDENTITY, digest(IDENTITY.inode))
    threads = [threading.Thread(target=write, args=(100 * n,)) for n in range(1, 4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = memory.recall()
        assert found
        assert all(value == digest(key.inode) for key, value in found.items())
    for thread in threads:
        thread.join()

    assert set(memory.recall()) & {attrs.evolve(IDENTITY, inode=100 * n + 9) for n in (1, 2, 3)}
