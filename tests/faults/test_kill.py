"""A process that is killed while it writes loses what it was writing, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections import Counter as Tally
from pathlib import Path

import pytest
from cold_objects import SMALL
from kill_server import NUM_OBJECTS, QUOTA_OBJECTS

from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits, WriteOutcome

KILLS = 200
SERVER = Path(__file__).parent / "kill_server.py"
LIMITS = StoreLimits(quota_bytes=QUOTA_OBJECTS * SMALL.num_bytes, min_free_bytes=0)


@pytest.fixture
def kill():
    """Kill a session in a folder at its nth call of the file system."""
    with subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def at(folder, step):
            print(folder, step, file=stdin, flush=True)
            return json.loads(stdout.readline())

        yield at
        stdin.close()


def check_lock_is_free(folder):
    """Fail if whoever was killed still holds the store's lock."""
    lock = folder / "lock"
    if lock.exists():
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def stored_files(folder):
    return [path for path in (folder / "objects").rglob("*") if path.is_file()]


def check_survivors(store, num_written):
    """Fail unless what was written last is there; one may have gone for the next."""
    present = [i for i in range(NUM_OBJECTS) if store.contains(SMALL.name(i))]
    restored = {i: SMALL.restore(store, i) for i in range(NUM_OBJECTS)}

    assert [i for i in restored if restored[i] is not None] == present
    for i in present:
        assert restored[i] == SMALL.payload(i)[1:]
    kept = range(max(0, num_written - (QUOTA_OBJECTS - 1)), num_written)
    assert set(kept) <= set(present)


def check_store(folder, num_written):
    """Open a store after a kill and fail if anything of it is wrong."""
    check_lock_is_free(folder)
    counters = Counters()
    store = ColdStore.open(folder, LIMITS, counters)
    store.check()
    files = stored_files(folder)

    assert not [path for path in files if path.name.startswith(".")]
    assert store.usage().num_bytes == sum(path.stat().st_size for path in files)
    check_survivors(store, num_written)
    assert counters.cache().corruptions == 0
    assert store.write(SMALL.name(100), SMALL.parts(100), 10**10) is WriteOutcome.WRITTEN
    store.check()
    store.close()


def test_killed_at_every_step(kill, tmp_path, monkeypatch):
    """CT-5: killed at each call of a session's life in turn: no object torn, none lost.

    After each of the 200 kills and more the store opens, counts right, and holds what it had
    acknowledged.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)  # as the server does
    died_at: Tally[str] = Tally()
    step = 0
    while True:
        step += 1
        folder = tmp_path / str(step)
        said = kill(folder, step)
        check_store(folder, said["written"])
        shutil.rmtree(folder)
        if said["died_at"] is None:
            break
        died_at[said["died_at"]] += 1

    assert said["written"] == NUM_OBJECTS
    assert died_at.total() >= KILLS
    assert {"open", "mkdir", "fsync", "flock", "utime", "unlink", "pwrite"} <= set(died_at)
    assert {"write", "writev"} & set(died_at)
    assert {"rename", "replace"} & set(died_at)
