"""Each call of the file system that a write makes fails once; the tier goes on."""

from __future__ import annotations

import errno
import fcntl
import os
import threading

import pytest
from cold_objects import SMALL

from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits
from neve.coldtier.transfer.writer import ColdWriter, WriteJob

SECONDS = 20.0
CALLS = [
    *("open", "mkdir", "write", "writev", "pwrite", "pread", "read", "fsync", "utime", "stat"),
    *(
        "lstat",
        "fstat",
        "statvfs",
        "fstatvfs",
        "rename",
        "replace",
        "unlink",
        "rmdir",
        "ftruncate",
    ),
    *("scandir", "listdir"),
]
LEAVES_TEMP = {"unlink"}  # swept when a store is opened after this process's end
ERRORS = [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE]


class Saboteur:
    """Numbers the file system calls of the writer thread, and makes one of them fail.

    Attributes:
        seen: The calls since it was armed, in order.
    """

    def __init__(self, monkeypatch):
        self.seen: list[str] = []
        self._armed = False
        self._fail_at = None
        self._error = 0
        for name in CALLS:
            self._wrap(monkeypatch, os, name)
        self._wrap(monkeypatch, fcntl, "flock")

    def arm(self, fail_at=None, error=0):
        self.seen = []
        self._fail_at, self._error = fail_at, error
        self._armed = True

    def disarm(self):
        self._armed = False

    def _wrap(self, monkeypatch, module, name):
        real = getattr(module, name)

        def call(*args, **kwargs):
            if not self._armed or threading.current_thread().name != "neve-cold-writer":
                return real(*args, **kwargs)
            self.seen.append(name)
            if len(self.seen) - 1 == self._fail_at:
                return self._fail(name, args)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    def _fail(self, name, args):
        if self._error:
            raise OSError(self._error, f"{name}: {os.strerror(self._error)}")
        file, data = args  # a short write: one byte of it
        return os.write(file, (b"".join(data) if name == "writev" else bytes(data))[:1])


class Tier:
    """A store of two objects' size with one in it, and its writer."""

    def __init__(self, root):
        self.root = root
        self.counters = Counters()
        limits = StoreLimits(quota_bytes=2 * SMALL.num_bytes, min_free_bytes=0)
        self.store = ColdStore.open(root, limits, self.counters)
        self.writer = ColdWriter(self.store, self.counters)
        self.stamp = 0
        assert self.write(0)

    def write(self, number):
        """Write an object and tell whether it landed."""
        self.stamp += 10**9
        job = WriteJob(SMALL.name(number), lambda: SMALL.parts(number), self.stamp)
        assert self.writer.offer(job)
        return self.writer.drain(SECONDS)

    def files(self):
        return [path for path in (self.root / "objects").rglob("*") if path.is_file()]

    def close(self):
        self.writer.close(SECONDS)
        self.store.close()


@pytest.fixture
def saboteur(monkeypatch):
    return Saboteur(monkeypatch)


@pytest.fixture
def tiers(tmp_path):
    """Make tiers in folders of their own."""
    made: list[Tier] = []

    def make():
        made.append(Tier(tmp_path / str(len(made))))
        return made[-1]

    yield make
    for tier in made:
        tier.close()


def calls_of_a_write(saboteur, tier):
    """Return the calls of a commit that has to evict, in order."""
    assert tier.write(1)
    saboteur.arm()
    assert tier.write(2)
    saboteur.disarm()
    assert tier.counters.cache().evictions == 1
    return saboteur.seen


def check_tier(tier, failed, landed):
    """Fail unless a tier is sound, and goes on, after one call of a write failed."""
    counts = tier.counters.cache()
    assert counts.write_errors == (0 if landed else 1)
    assert counts.enqueued == 3
    tier.store.check()
    temps = [path for path in tier.files() if path.name.startswith(".")]
    assert len(temps) <= (failed in LEAVES_TEMP)
    for number in range(3):
        if tier.store.contains(SMALL.name(number)):
            assert SMALL.restore(tier.store, number) == SMALL.payload(number)[1:]
    assert not landed or tier.store.contains(SMALL.name(2))
    assert tier.write(3)
    assert SMALL.restore(tier.store, 3) == SMALL.payload(3)[1:]
    tier.store.check()
    assert counts.corruptions == 0


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: errno.errorcode[error])
def test_each_call_fails_once(saboteur, tiers, error):
    """CT-7: a failing call costs the object at most: counted, no temp left, the next lands."""
    calls = calls_of_a_write(saboteur, tiers())
    for number, name in enumerate(calls):
        tier = tiers()
        assert tier.write(1)
        saboteur.arm(number, error)
        landed = tier.write(2)
        saboteur.disarm()

        assert saboteur.seen[: number + 1] == calls[: number + 1]
        check_tier(tier, name, landed)


def test_each_write_is_short_once(saboteur, tiers):
    """CT-5: a write that takes only one byte is gone on with."""
    calls = calls_of_a_write(saboteur, tiers())
    # pwrite is the ledger's: a few bytes in a page that is there are never cut short
    writes = [i for i, name in enumerate(calls) if name in {"write", "writev"}]
    assert writes
    for number in writes:
        tier = tiers()
        assert tier.write(1)
        saboteur.arm(number)
        landed = tier.write(2)
        saboteur.disarm()

        assert landed
        check_tier(tier, calls[number], landed)


def test_a_commit_is_made_of_these_steps(saboteur, tiers):
    """CT-5: create, write, fsync, rename, and an fsync of the directory, in this order."""
    calls = calls_of_a_write(saboteur, tiers())
    steps = ["open", "writev", "fsync", "rename", "fsync"]
    rest = iter(calls)

    assert all(step in rest for step in steps)
