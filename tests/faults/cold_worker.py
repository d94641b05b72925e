"""One of several processes on one store: `python cold_worker.py ROOT SEED SECONDS QUOTA`.

Writes, reads and uses objects at random, and prints what it saw as a line of JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

from cold_objects import LARGE

from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits
from neve.coldtier.transfer.writer import ColdWriter, WriteJob

NUM_OBJECTS = 60


class Worker:
    """A writer and a reader of objects that all processes know.

    Attributes:
        seen: Events by name.
        counters: Of the tier.
    """

    def __init__(self, root: Path, seed: int, quota_bytes: int) -> None:
        self.seen: Counter[str] = Counter()
        self.counters = Counters()
        limits = StoreLimits(quota_bytes=quota_bytes, min_free_bytes=0)
        self._store = ColdStore.open(root, limits, self.counters)
        self._writer = ColdWriter(self._store, self.counters)
        self._random = random.Random(seed)

    def write(self, number: int) -> None:
        name = LARGE.name(number)
        if self._store.probe(name):
            return
        job = WriteJob(name, lambda: LARGE.parts(number), time.time_ns())
        self._writer.offer_before(job, time.monotonic() + 10)

    def read(self, number: int) -> None:
        self._store.probe(LARGE.name(number))
        layers = LARGE.restore(self._store, number)
        if layers is None:
            self.seen["misses"] += 1
        elif layers == LARGE.payload(number)[1:]:
            self.seen["hits"] += 1
            self._store.touch([LARGE.name(number)], time.time_ns())
        else:
            self.seen["wrong"] += 1

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            step = self._random.choice([self.write, self.read, self.read])
            step(self._random.randrange(NUM_OBJECTS))
        self._writer.close(30)
        self._store.close()

    def report(self) -> dict[str, int]:
        """Return what was seen; refusals are no errors of the disk."""
        stats = self.counters.cache()
        refusals = self._writer.num_refusals
        return {
            **dict.fromkeys(("hits", "misses", "wrong"), 0),
            **self.seen,
            "enqueued": stats.enqueued,
            "errors": stats.write_errors - refusals,
            "refusals": refusals,
            "corruptions": stats.corruptions,
        }


def main(root: str, seed: str, seconds: str, quota: str) -> None:
    """Work and report."""
    worker = Worker(Path(root), int(seed), int(quota))
    worker.run(float(seconds))
    json.dump(worker.report(), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
