"""Kills a writing process again and again: `python kill_server.py ROOT`.

Reads a line `FOLDER STEP` from stdin and forks a child that opens a store in that folder,
writes more objects than its quota holds, and dies by SIGKILL in front of its STEPth call of
the file system; a call that writes bytes is half done by then. The answer is a line of JSON:
the call that it died at, null if there were fewer, and the objects that it had written.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from cold_objects import SMALL

from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits, WriteOutcome

NUM_OBJECTS = 8
QUOTA_OBJECTS = 4
CALLS = [
    *("open", "mkdir", "write", "writev", "pwrite", "fsync", "utime", "rename", "replace"),
    *("unlink", "rmdir", "ftruncate", "close"),
]


class Trap:
    """Counts calls of the file system and dies at one of them."""

    def __init__(self, kill_at: int, report: int) -> None:
        self._left = kill_at
        self._report = report
        self._write = os.write

    def say(self, word: str) -> None:
        self._write(self._report, f"{word}\n".encode())

    def arm(self) -> None:
        for name in CALLS:
            self._wrap(os, name)
        self._wrap(fcntl, "flock")

    def _wrap(self, module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.say(name)
                self._halve(name, real, args)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(module, name, call)

    def _halve(self, name: str, real: Any, args: tuple[Any, ...]) -> None:
        if name in {"write", "pwrite"}:
            file, data, *offset = args
            real(file, bytes(data)[: len(data) // 2], *offset)
        elif name == "writev":
            data = b"".join(args[1])
            self._write(args[0], data[: len(data) // 2])


def session(folder: Path, trap: Trap) -> None:
    """Fill a store beyond its quota, use it, and close it."""
    limits = StoreLimits(quota_bytes=QUOTA_OBJECTS * SMALL.num_bytes, min_free_bytes=0)
    os.fsync = lambda _: None  # only a power cut could tell the difference
    trap.arm()
    store = ColdStore.open(folder, limits, Counters())
    for i in range(NUM_OBJECTS):
        outcome = store.write(SMALL.name(i), SMALL.parts(i), 1000 * i)
        if outcome is WriteOutcome.WRITTEN:
            trap.say("written")
    store.touch([SMALL.name(i) for i in range(NUM_OBJECTS)], 10**9)
    store.close()


def kill(folder: Path, step: int) -> dict[str, Any]:
    """Run a session that dies at `step` and return what it said."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            session(folder, Trap(step, write))
        except BaseException:  # noqa: BLE001  whatever it is, the child must not go on as a server
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as report:
        said = report.read().split()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    return {"died_at": said[-1] if killed else None, "written": said.count("written")}


def main() -> None:
    """Serve until stdin ends."""
    for line in sys.stdin:
        folder, step = line.rsplit(maxsplit=1)
        sys.stdout.write(json.dumps(kill(Path(folder), int(step))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
