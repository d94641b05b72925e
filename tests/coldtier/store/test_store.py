from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.store import contents
from neve.coldtier.store.location import default_root
from neve.coldtier.store.store import ColdStore, ObjectInfo, WriteOutcome
from neve.errors import StoreUnavailableError

MakeName = Callable[..., ObjectName]
MakeStore = Callable[..., ColdStore]
PathOf = Callable[[ObjectName], Path]

WRITTEN, PRESENT = WriteOutcome.WRITTEN, WriteOutcome.PRESENT


def data_of(store: ColdStore, name: ObjectName) -> bytes | None:
    stored = store.read(name, 1000)
    return None if stored is None else bytes(stored.data)


def files_under(root: Path) -> list[str]:
    return sorted(p.name for p in (root / "objects").rglob("*") if p.is_file())


def test_an_object_comes_back(make_store: MakeStore, make_name: MakeName, clock) -> None:
    """CT-1: what was written is there, in this process and in the next one."""
    store = make_store()
    kv, state = make_name(0), make_name(1, ColdGroup.GDN_STATE)
    assert store.write(kv, [b"ab", b"c"], clock.now_ns) is WRITTEN
    assert store.write(state, [b"state"], clock.now_ns) is WRITTEN
    fresh = make_store()

    for opened in (store, fresh):
        assert opened.contains(kv)
        assert (data_of(opened, kv), data_of(opened, state)) == (b"abc", b"state")
    assert fresh.usage().num_objects == 2
    assert fresh.usage().num_bytes == 8


def test_an_object_is_written_once(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-9: what is there, whoever wrote it, is not written again."""
    store, other = make_store(), make_store()
    assert store.write(make_name(0), [b"abc"], clock.now_ns) is WRITTEN
    monkeypatch.setattr(os, "writev", None)

    assert store.write(make_name(0), [b"abc"], clock.now_ns) is PRESENT
    assert other.write(make_name(0), [b"abc"], clock.now_ns) is PRESENT
    assert other.contains(make_name(0))
    assert store.usage().written_today_bytes == 3


def test_another_process_may_be_faster(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch, root: Path
) -> None:
    """CT-9: of two that write one object at a time, the second one lets the first one's be."""
    store, other = make_store(), make_store()
    fsync = os.fsync

    def interrupted(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        assert other.write(make_name(0), [b"theirs"], clock.now_ns) is WRITTEN
        fsync(descriptor)

    store.write(make_name("shard"), [b"x"], clock.now_ns)
    (root / "objects" / make_name(0).file_name[:2]).mkdir(exist_ok=True)
    monkeypatch.setattr(os, "fsync", interrupted)

    assert store.write(make_name(0), [b"ours"], clock.now_ns) is PRESENT
    assert data_of(store, make_name(0)) == b"theirs"
    assert len(files_under(root)) == 2
    store.check()


def test_the_commit_has_its_order(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-5: exclusive create, write, fsync, rename, fsync of the folder; then it is known."""
    store = make_store()
    store.write(make_name(0), [b"x"], clock.now_ns)
    store.remove([make_name(0)])
    steps: list[str] = []

    def watch(module, step: str) -> None:
        real = getattr(module, step)

        def run(*args: object, **kwargs: object) -> object:
            exclusive = step == "open" and bool(args[1] & os.O_EXCL)  # type: ignore[operator]
            if step != "open" or exclusive:
                known = "known" if store.contains(make_name(0)) else "unknown"
                steps.append(f"{step} {known}")
            return real(*args, **kwargs)

        monkeypatch.setattr(module, step, run)

    for step in ("open", "writev", "fsync", "rename"):
        watch(os, step)
    store.write(make_name(0), [b"x"], clock.now_ns)

    assert steps == [
        "open unknown",
        "writev unknown",
        "fsync unknown",
        "rename unknown",
        "fsync known",
    ]


@pytest.mark.parametrize("step", ["writev", "utime", "fsync", "rename", "pwrite"])
def test_a_failed_write_leaves_nothing(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch, root: Path, step: str
) -> None:
    """CT-5: whatever step fails, no file, no entry and no byte on the account is left."""
    store = make_store()
    store.write(make_name(0), [b"x"], clock.now_ns)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (root / "objects" / make_name(1).file_name[:2]).mkdir(exist_ok=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space"):
            store.write(make_name(1), [b"abc"], clock.now_ns)

    assert files_under(root) == [make_name(0).file_name]
    assert not store.contains(make_name(1))
    assert store.usage().num_bytes == 1
    store.check()
    assert store.write(make_name(1), [b"abc"], clock.now_ns) is WRITTEN


def test_a_failed_fsync_of_the_folder_keeps_the_accounts_true(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch, root: Path
) -> None:
    """CT-5: the write failed, but the file is there: so are its entry and its bytes."""
    store = make_store()
    (root / "objects" / make_name(0).file_name[:2]).mkdir()
    fsync, calls = os.fsync, [0]

    def fail_second(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_second)
    with pytest.raises(OSError, match="Input/output"):
        store.write(make_name(0), [b"abc"], clock.now_ns)

    assert store.contains(make_name(0))
    store.check()


def test_probe_adopts_what_another_process_wrote(
    make_store: MakeStore, make_name: MakeName, clock
) -> None:
    """CT-9: an object that appeared after the scan is found with one look, and stays found."""
    store, other = make_store(), make_store()
    other.write(make_name(0), [b"abc"], clock.now_ns)

    assert not store.contains(make_name(0))
    assert store.probe(make_name(0))
    assert store.contains(make_name(0))
    assert store.objects() == [ObjectInfo(make_name(0), 3, clock.now_ns)]
    assert not store.probe(make_name(1))


def test_a_file_that_is_gone_is_forgotten(
    make_store: MakeStore, make_name: MakeName, clock, path_of: PathOf
) -> None:
    """CT-3: what cannot be opened is a miss, no corruption; afterwards it can be written."""
    store = make_store()
    store.write(make_name(0), [b"abc"], clock.now_ns)
    path_of(make_name(0)).unlink()

    assert store.read(make_name(0), 1000) is None
    assert not store.contains(make_name(0))
    assert store.counters.cache().corruptions == 0
    assert store.write(make_name(0), [b"abc"], clock.now_ns) is WRITTEN


def test_writing_heals_a_stale_entry(
    make_store: MakeStore, make_name: MakeName, clock, path_of: PathOf
) -> None:
    """CT-9: an entry without a file does not keep the file from being written."""
    store = make_store()
    store.write(make_name(0), [b"abc"], clock.now_ns)
    path_of(make_name(0)).unlink()

    assert store.contains(make_name(0))
    assert store.write(make_name(0), [b"abc"], clock.now_ns) is WRITTEN
    assert data_of(store, make_name(0)) == b"abc"


def test_an_unsound_object_goes(
    make_store: MakeStore, make_name: MakeName, clock, path_of: PathOf
) -> None:
    """CT-3: what was read and is unsound is removed and counted once."""
    store = make_store()
    store.write(make_name(0), [b"bad"], clock.now_ns)
    stored = store.read(make_name(0), 1000)
    assert stored is not None

    assert store.reject(make_name(0), stored.identity)
    assert not path_of(make_name(0)).exists()
    assert not store.contains(make_name(0))
    assert store.counters.cache().corruptions == 1
    store.check()


def test_a_fresh_object_is_not_rejected_in_anothers_place(
    make_store: MakeStore, make_name: MakeName, clock, path_of: PathOf
) -> None:
    """CT-3: what has been replaced meanwhile stays; the corruption counts nevertheless."""
    store = make_store()
    store.write(make_name(0), [b"bad"], clock.now_ns)
    stored = store.read(make_name(0), 1000)
    assert stored is not None
    path_of(make_name(0)).rename(path_of(make_name(0)).with_name("kept"))
    store.write(make_name(0), [b"good"], clock.now_ns)

    assert not store.reject(make_name(0), stored.identity)
    assert data_of(store, make_name(0)) == b"good"
    assert store.counters.cache().corruptions == 1


def test_a_held_lock_does_not_hold_a_reader(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-9: a process that was stopped with the lock in its hand stops neither of us."""
    store, stopped = make_store(), make_store()
    store.write(make_name(0), [b"bad"], clock.now_ns)
    stored = store.read(make_name(0), 1000)
    assert stored is not None
    monkeypatch.setattr("neve.coldtier.store.store._REJECT_TIMEOUT_S", 0.02)
    with stopped._contents.directory.lock():
        assert not store.reject(make_name(0), stored.identity)
        assert store.probe(make_name(0))
        assert data_of(store, make_name(0)) == b"bad"
        store.touch([make_name(0)], clock.advance(100))
        store.flush_touches()

    assert store.reject(make_name(0), stored.identity)


def test_a_restart_keeps_the_order(make_store: MakeStore, make_name: MakeName, clock) -> None:
    """CT-7: last uses outlive the process, those of the last minute with its close."""
    store = make_store()
    names = [make_name(i) for i in range(4)]
    for name in names:
        store.write(name, [b"x"], clock.advance(1))
    store.touch([names[1], names[0]], clock.advance(1))
    order = store.objects()
    store.close()

    assert [info.name for info in order] == [names[2], names[3], names[0], names[1]]
    assert make_store().objects() == order


def test_a_killed_process_loses_a_minute_at_most(
    make_store: MakeStore, make_name: MakeName, clock
) -> None:
    """CT-7: a use that lags far behind is on disk without a close."""
    store = make_store()
    store.write(make_name(0), [b"x"], clock.now_ns)
    store.write(make_name(1), [b"x"], clock.advance(1))
    flushed_ns = clock.advance(100)
    store.touch([make_name(0)], flushed_ns)
    store.flush_touches()
    store.touch([make_name(0)], clock.advance(59))
    store.flush_touches()

    assert make_store().objects()[1:] == [ObjectInfo(make_name(0), 1, flushed_ns)]


def test_pruning(make_store: MakeStore, make_name: MakeName, clock) -> None:
    """CT-12: the least recently used go until the rest fits; a dry run only names them."""
    store, other = make_store(), make_store()
    for i in range(4):
        store.write(make_name(i), [bytes(10)], clock.advance(1))
    planned = other.prune(25, dry_run=True)

    assert [info.name for info in planned] == [make_name(0), make_name(1)]
    assert other.usage().num_bytes == 40
    assert other.prune(25) == planned
    assert other.prune(25) == []
    assert other.usage().num_bytes == 20
    assert other.counters.cache().evictions == 0
    other.check()


def test_removing_and_clearing(
    make_store: MakeStore, make_name: MakeName, clock, path_of: PathOf
) -> None:
    """CT-12: names that are not there do not count; clearing leaves foreign files alone."""
    store = make_store()
    for i in range(3):
        store.write(make_name(i), [bytes(10)], clock.advance(1))
    foreign = path_of(make_name(1)).with_name("notes.txt")
    foreign.write_text("mine")

    assert store.remove([make_name(0), make_name(7), make_name(0)]) == 1
    assert store.clear() == 2
    assert store.objects() == []
    assert foreign.read_text() == "mine"
    store.check()


def test_clearing_takes_what_has_no_bytes_and_passes_over_the_rest(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-12: empty objects go too; one that resists stays, in the index and on the account."""
    store, other = make_store(), make_store()
    store.write(make_name("empty"), [], clock.advance(1))
    store.write(make_name("held"), [bytes(10)], clock.advance(1))
    other.write(make_name("theirs"), [bytes(10)], clock.advance(1))
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path == make_name("held").file_name:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)

    assert store.clear() == 2
    assert [info.name for info in store.objects()] == [make_name("held")]
    assert other.usage().num_bytes == 10
    store.check()


def test_a_scan_leaves_garbage_collection_as_it_was(make_store: MakeStore) -> None:
    """CT-12: opening a store pauses it, whatever the caller has chosen."""
    make_store()
    assert gc.isenabled()
    gc.disable()
    try:
        make_store()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_deleted_folder_is_made_again(
    make_store: MakeStore, make_name: MakeName, clock, root: Path
) -> None:
    """CT-7: after `rm -r` objects are misses, and the next write begins anew."""
    store = make_store()
    store.write(make_name(0), [b"abc"], clock.now_ns)
    shutil.rmtree(root)

    assert store.read(make_name(0), 1000) is None
    assert store.write(make_name(1), [b"de"], clock.now_ns) is WRITTEN
    assert [info.name for info in store.objects()] == [make_name(1)]
    assert store.usage().num_bytes == 2
    assert make_store().contains(make_name(1))
    store.check()


def test_a_folder_that_cannot_be_made_again_disables_the_store(
    make_store: MakeStore, make_name: MakeName, clock, root: Path
) -> None:
    """CT-7: then nothing is there, every write fails, and nothing else does."""
    store = make_store()
    store.write(make_name(0), [b"abc"], clock.now_ns)
    shutil.rmtree(root)
    root.write_text("mine")

    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            store.write(make_name(1), [b"de"], clock.now_ns)
    assert not store.contains(make_name(0))
    assert not store.probe(make_name(0))
    assert store.read(make_name(0), 1000) is None
    assert store.objects() == []
    assert not store.reject(make_name(0), (1, 1))
    assert root.read_text() == "mine"


def test_a_store_that_cannot_be_scanned_is_unavailable(
    make_store: MakeStore, monkeypatch
) -> None:
    """CT-7: whatever fails while it opens is a reason, not a crash."""

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(contents, "scan", fail)

    with pytest.raises(StoreUnavailableError, match="Input/output error"):
        make_store()


def test_threads_share_a_store(make_store: MakeStore, make_name: MakeName, clock) -> None:
    """CT-5: readers, the engine and the writer work at once; the accounts stay true."""
    store = make_store(quota_bytes=600)
    names = [make_name(i) for i in range(20)]
    done, failures = threading.Event(), list[BaseException]()

    def repeat(action: Callable[[ObjectName], object]) -> None:
        try:
            while not done.is_set():
                for name in names:
                    action(name)
        except BaseException as error:  # noqa: BLE001  shown by the test
            failures.append(error)

    def check_read(name: ObjectName) -> None:
        assert data_of(store, name) in (None, name.key * 3)

    actions = (check_read, store.probe, lambda name: store.touch([name], clock.advance(1)))
    threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for _ in range(4):
        for name in names:
            store.write(name, [name.key, name.key * 2], clock.advance(1))
    done.set()
    for thread in threads:
        thread.join()

    assert failures == []
    assert store.usage().num_bytes <= 600
    store.check()


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "/home/me/.cache/neve/cold/v1"),
        ("linux", {"XDG_CACHE_HOME": "/caches"}, "/caches/neve/cold/v1"),
        ("linux", {"XDG_CACHE_HOME": "caches"}, "/home/me/.cache/neve/cold/v1"),
        ("darwin", {"XDG_CACHE_HOME": "/caches"}, "/home/me/Library/Caches/neve/cold/v1"),
    ],
)
def test_where_a_store_lies(
    monkeypatch, platform: str, environment: dict[str, str], expected: str
) -> None:
    """CT-8: in the platform's cache folder, whatever the working directory."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert default_root(None) == Path(expected)
    assert default_root("") == Path(expected)


def test_a_folder_of_the_users_own(monkeypatch) -> None:
    """CT-8: the store is a child of the given folder, never that folder itself."""
    monkeypatch.setenv("HOME", "/home/me")

    assert default_root("/data") == Path("/data/neve-cold-v1")
    assert default_root("~/data") == Path("/home/me/data/neve-cold-v1")


def test_without_a_home_there_is_no_default(monkeypatch) -> None:
    """CT-8: a process without a home folder has no store, and is told what would help."""

    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    with pytest.raises(StoreUnavailableError, match="set cold_cache_dir"):
        default_root(None)
