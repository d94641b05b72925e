"""What the cold tier's writer spends on one object, and what its index costs."""

from __future__ import annotations

import fcntl
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

from neve.coldtier.objects.format import KvGeometry, encode, encode_tokens, kv_layout
from neve.coldtier.objects.keys import ObjectName
from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits
from neve.contract.page_format import keys_and_values
from neve.ids import ColdKey, Fingerprint

from .figures import Figure, bounded, seconds

GEOMETRIES = [
    KvGeometry(16, 24, keys_and_values(2, 64, 64), "BF16"),  # 198 KB
    KvGeometry(16, 10, keys_and_values(4, 128, 128), "BF16"),  # 330 KB
    KvGeometry(16, 22, keys_and_values(4, 128, 128), "BF16"),  # 0.74 MB
    KvGeometry(16, 28, keys_and_values(8, 128, 128), "BF16"),  # 1.84 MB
]
STEPS = ("checksum", "create", "write", "fsync", "rename", "fsync of the folder")
ROUNDS = 40
TURN_BLOCKS, TURN_MS = 128, 250
NUM_OBJECTS = 100_000

_MODEL = Fingerprint(bytes(32))
_FULL_FLUSH: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class Commit:
    """The steps of a commit on the bare file system, each with its own clock.

    Attributes:
        num_bytes: Of the object.
        times: Milliseconds of each step, a list a commit.
    """

    def __init__(
        self, folder: int, geometry: KvGeometry, flush: Callable[[int], object]
    ) -> None:
        self._folder = folder
        self._flush = flush
        self._layout = kv_layout(geometry)
        tokens = encode_tokens(range(geometry.block_size))
        pages = [os.urandom(tensor.num_bytes) for tensor in self._layout.tensors[1:]]
        self._payload = [tokens, *pages]
        self.num_bytes = self._layout.max_bytes
        self.times: list[list[float]] = []

    def run(self, number: int) -> None:
        """Write one more object."""
        name = ObjectName(ColdKey(number.to_bytes(32, "big")))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        clock = [time.perf_counter()]

        def done() -> None:
            clock.append(time.perf_counter())

        parts = encode(name, _MODEL, self._layout, self._payload)
        done()
        file = os.open(".temp", flags, 0o600, dir_fd=self._folder)
        done()
        os.writev(file, parts)  # far less than the 1024 pieces that one call takes
        done()
        self._flush(file)
        os.close(file)
        done()
        os.rename(".temp", name.file_name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        done()
        os.fsync(self._folder)
        done()
        self.times.append([1e3 * (b - a) for a, b in pairwise(clock)])

    def medians(self) -> list[float]:
        """Return each step's median, without the first round."""
        return [statistics.median(column) for column in zip(*self.times[1:], strict=True)]

    def total(self) -> float:
        """Return the median of whole commits."""
        return statistics.median(map(sum, self.times[1:]))


def _full_flush(file: int) -> None:
    assert _FULL_FLUSH is not None
    fcntl.fcntl(file, _FULL_FLUSH)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.2f} MB" if num_bytes >= 500_000 else f"{num_bytes / 1e3:.0f} KB"


def _line(commit: Commit, flush: str) -> Figure:
    pairs = zip(STEPS, commit.medians(), strict=True)
    detail = ", ".join(f"{step} {ms:.3f}" for step, ms in pairs)
    name = f"commit of {_size(commit.num_bytes)}, {flush}"
    return Figure(name, commit.total(), "ms", "-", True, detail)


def _commits() -> list[Figure]:
    """Commits of every size, with both flushes where there are two, taking turns."""
    flushes: dict[str, Callable[[int], object]] = {"fsync(2)": os.fsync}
    if _FULL_FLUSH is not None:
        flushes["full flush"] = _full_flush
    with tempfile.TemporaryDirectory() as path:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        sides = {(g, f): Commit(folder, g, flushes[f]) for g in GEOMETRIES for f in flushes}
        for i in range(ROUNDS + 1):
            for j, commit in enumerate(sides.values()):
                commit.run(i * len(sides) + j)
        os.close(folder)
    figures = [_line(commit, flush) for (_, flush), commit in sides.items()]
    smallest = sides[GEOMETRIES[0], "fsync(2)"].total()
    return [*figures, _flush_figure(sides), _turn_figure(smallest)]


def _flush_figure(sides: dict[tuple[KvGeometry, str], Commit]) -> Figure:
    name = "full flush against fsync(2), smallest object"
    if _FULL_FLUSH is None:
        detail = "no F_FULLFSYNC here: fsync(2) is all that there is"
        return Figure(name, 1.0, "x", "-", True, detail)
    ours, full = (sides[GEOMETRIES[0], flush].total() for flush in ("fsync(2)", "full flush"))
    return Figure(name, full / ours, "x", "-", True, f"{full:.2f} against {ours:.2f} ms")


def _turn_figure(commit_ms: float) -> Figure:
    """Whether the disk takes a turn's blocks within the turn's budget of time."""
    name = f"{TURN_BLOCKS} smallest blocks, one after the other"
    return bounded(name, TURN_BLOCKS * commit_ms, TURN_MS, "ms")


def _fill(objects: Path) -> list[ObjectName]:
    """Lay out small files as a store would, without its care."""
    names = [ObjectName(ColdKey(os.urandom(32))) for _ in range(NUM_OBJECTS)]
    for shard in range(256):
        (objects / f"{shard:02x}").mkdir(mode=0o700, exist_ok=True)
    for name in names:
        path = objects / name.file_name[:2] / name.file_name
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    return names


def _open(root: Path, counters: Counters) -> tuple[ColdStore, float]:
    """Return an open store, and the best of three times that opening it took, in seconds."""
    times: list[float] = []
    while True:
        start = time.perf_counter()
        store = ColdStore.open(root, StoreLimits(), counters)
        times.append(time.perf_counter() - start)
        if len(times) == 3:
            return store, min(times)
        store.close()


def _ask(store: ColdStore, names: list[ObjectName]) -> None:
    if not all(map(store.contains, names)):
        raise RuntimeError("the store has lost an object")


def _index() -> list[Figure]:
    """Opening a store of 100,000 objects, and asking its index."""
    with tempfile.TemporaryDirectory() as path:
        root, counters = Path(path) / "cold", Counters()
        ColdStore.open(root, StoreLimits(), counters).close()
        names = _fill(root / "objects")
        store, open_s = _open(root, counters)
        ask = partial(_ask, store, names)
        contains_us = min(seconds(ask) for _ in range(3)) / NUM_OBJECTS * 1e6
        clear_s = seconds(store.clear)
        store.close()
    return [
        bounded("contains, 100,000 objects", contains_us, 2, "us"),
        bounded("opening a store of 100,000 objects", open_s, 1.0, "s"),
        bounded("clearing it", clear_s, 10, "s"),
    ]


def cold_writer() -> list[Figure]:
    """The writer's steps for each object size, and the index of a large store."""
    return [*_commits(), *_index()]
