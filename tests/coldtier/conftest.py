from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits
from neve.ids import ColdKey

SECOND_NS = 10**9
START_NS = 1_800_000_000 * SECOND_NS


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> int:
        self.now_ns += int(seconds * SECOND_NS)
        return self.now_ns


MakeStore = Callable[..., ColdStore]
MakeName = Callable[..., ObjectName]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_name() -> MakeName:
    """Return a builder of names, a different one for each value."""

    def build(value: object, group: ColdGroup = ColdGroup.KV) -> ObjectName:
        return ObjectName(ColdKey(hashlib.sha256(repr(value).encode()).digest()), group)

    return build


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture
def path_of(root: Path) -> Callable[[ObjectName], Path]:
    """Return where an object's file lies."""
    return lambda name: root / "objects" / name.file_name[:2] / name.file_name


@pytest.fixture
def make_store(root: Path, clock: Clock) -> Iterator[MakeStore]:
    """Return a builder of stores, all in one folder; they are closed at the end."""
    stores: list[ColdStore] = []

    def build(
        quota_bytes: int | None = 1000,
        min_free_bytes: int | None = 0,
        daily_write_bytes: int | None = None,
        folder: Path = root,
    ) -> ColdStore:
        limits = StoreLimits(quota_bytes, min_free_bytes, daily_write_bytes)
        stores.append(ColdStore.open(folder, limits, Counters(), clock))
        return stores[-1]

    yield build
    for store in stores:
        store.close()
