"""Several processes, one store."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from cold_objects import LARGE
from cold_worker import NUM_OBJECTS

from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits

NUM_PROCESSES = 4
SECONDS = float(os.environ.get("NEVE_FAULT_SECONDS", "8"))
QUOTA_BYTES = 20 * LARGE.num_bytes
WORKER = Path(__file__).parent / "cold_worker.py"


def start(root, seed):
    arguments = [str(root), str(seed), str(SECONDS), str(QUOTA_BYTES)]
    return subprocess.Popen(
        [sys.executable, str(WORKER), *arguments], stdout=subprocess.PIPE, text=True
    )


def used_bytes(root):
    """Return what all files of the store take, with no commit under way."""
    with (root / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        total = 0
        for path in (root / "objects").rglob("*"):
            try:
                total += path.stat().st_size if path.is_file() else 0
            except FileNotFoundError:
                continue  # another process's temp, gone since it was listed
        return total


def samples_until_all_end(root, processes):
    """Return what the store took, ten times a second."""
    samples = []
    while any(process.poll() is None for process in processes):
        samples.append(used_bytes(root))
        time.sleep(0.1)
    return samples


def test_four_processes_share_a_store(tmp_path):
    """CT-9: no read is torn or wrong, no write is lost, and one quota holds for all.

    `NEVE_FAULT_SECONDS` makes it longer.
    """
    root = tmp_path / "cold"
    limits = StoreLimits(quota_bytes=QUOTA_BYTES, min_free_bytes=0)
    ColdStore.open(root, limits, Counters()).close()
    processes = [start(root, seed) for seed in range(NUM_PROCESSES)]
    samples = samples_until_all_end(root, processes)
    reports = [json.loads(process.communicate()[0]) for process in processes]

    assert [process.returncode for process in processes] == [0] * NUM_PROCESSES
    assert max(samples) <= QUOTA_BYTES + NUM_PROCESSES * LARGE.num_bytes
    for report in reports:
        assert report["wrong"] == report["corruptions"] == report["errors"] == 0
        # refused is what would displace objects that were used after it was offered
        assert report["enqueued"] > 2 * report["refusals"]
        assert report["hits"] > 0
    check_at_rest(root, limits)


def check_at_rest(root, limits):
    """Fail unless the store that is left is full, sound and counted right."""
    counters = Counters()
    store = ColdStore.open(root, limits, counters)
    store.check()
    present = [i for i in range(NUM_OBJECTS) if store.contains(LARGE.name(i))]

    assert store.usage().num_bytes == used_bytes(root) == len(present) * LARGE.num_bytes
    assert QUOTA_BYTES - LARGE.num_bytes < used_bytes(root) <= QUOTA_BYTES
    for i in present:
        assert LARGE.restore(store, i) == LARGE.payload(i)[1:]
    assert counters.cache().corruptions == 0
    store.close()
