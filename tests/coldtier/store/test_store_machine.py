"""The store against a folder, a dictionary and a tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from neve.coldtier.objects.keys import ObjectName
from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits, WriteOutcome
from neve.ids import ColdKey

SECOND_NS = 10**9
DAY_NS = 86400 * SECOND_NS
QUOTA_BYTES = 100
DAILY_BYTES = 400

WRITTEN, PRESENT = WriteOutcome.WRITTEN, WriteOutcome.PRESENT

Path_ = tuple[int, ...]


def name_of(value: object) -> ObjectName:
    return ObjectName(ColdKey(hashlib.sha256(repr(value).encode()).digest()))


NAMES = [name_of(i) for i in range(10)]

names = st.sampled_from(NAMES)
sizes = st.one_of(st.integers(0, 45), st.integers(90, 110))


class StoreMachine(RuleBasedStateMachine):
    """One folder on disk; fsync is left out, which has its own tests."""

    daily_bytes: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.root = self.folder / "cold"
        self.now_ns = 20_000 * DAY_NS
        self.fsync = mock.patch.object(os, "fsync")
        self.fsync.start()

    def teardown(self) -> None:
        self.fsync.stop()
        shutil.rmtree(self.folder)

    def open(self) -> ColdStore:
        limits = StoreLimits(QUOTA_BYTES, 0, self.daily_bytes)
        return ColdStore.open(self.root, limits, Counters(), lambda: self.now_ns)

    def tick(self) -> int:
        self.now_ns += SECOND_NS
        return self.now_ns

    def content(self, name: ObjectName, num_bytes: int) -> list[bytes]:
        """Return bytes that only this object has, in two pieces."""
        data = (name.key * 4)[:num_bytes]
        return [data[:7], data[7:]]

    def path(self, name: ObjectName) -> Path:
        return self.root / "objects" / name.file_name[:2] / name.file_name

    def on_disk(self) -> dict[ObjectName, int]:
        """Return the size of every file, whose content must be its object's."""
        found: dict[ObjectName, int] = {}
        for path in (self.root / "objects").glob("*/*"):
            name = ObjectName.parse(path.name)
            assert name is not None, "no temporary file is left"
            data = path.read_bytes()
            found[name] = len(data)
            assert data == b"".join(self.content(name, len(data)))
        return found


class ExactMachine(StoreMachine):
    """CT-7, CT-10: a store does exactly what a dictionary of sizes and stamps does."""

    daily_bytes = DAILY_BYTES

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[ObjectName, tuple[int, int]] = {}  # name -> (bytes, last use)
        self.today_bytes = 0
        self.evictions = 0
        self.real = self.open()

    def teardown(self) -> None:
        self.real.close()
        super().teardown()

    def num_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())

    def in_order(self) -> list[ObjectName]:
        return sorted(self.files, key=lambda name: self.files[name][1])

    def expected(self, name: ObjectName, size: int, stamp_ns: int) -> WriteOutcome:
        if name in self.files:
            return PRESENT
        if self.today_bytes + size > DAILY_BYTES:
            return WriteOutcome.DAILY_LIMIT
        victims: list[ObjectName] = []
        missing = self.num_bytes() + size - QUOTA_BYTES
        for victim in self.in_order():
            if missing > 0 and self.files[victim][1] <= stamp_ns:
                victims.append(victim)
                missing -= self.files[victim][0]
        if missing > 0:
            return WriteOutcome.QUOTA
        for victim in victims:
            del self.files[victim]
        self.evictions += len(victims)
        self.files[name] = (size, stamp_ns)
        self.today_bytes += size
        return WRITTEN

    @rule(name=names, size=sizes, age=st.integers(0, 5))
    def write(self, name: ObjectName, size: int, age: int) -> None:
        stamp_ns = self.tick() - age * (SECOND_NS + 1)
        outcome = self.real.write(name, self.content(name, size), stamp_ns)
        assert outcome is self.expected(name, size, stamp_ns)

    @rule(chain=st.lists(names, unique=True, max_size=4))
    def touch(self, chain: list[ObjectName]) -> None:
        stamp_ns = self.tick()
        self.real.touch(chain, stamp_ns)
        for depth, name in enumerate(chain):
            if name in self.files:
                size, used_ns = self.files[name]
                self.files[name] = (size, max(used_ns, stamp_ns - 1000 * depth))

    @rule(name=names, max_bytes=st.integers(0, 50))
    def read(self, name: ObjectName, max_bytes: int) -> None:
        stored = self.real.read(name, max_bytes)
        assert (stored is not None) == (name in self.files)
        if stored is not None:
            size = min(self.files[name][0], max_bytes + 1)
            assert stored.data == b"".join(self.content(name, size))

    @rule(name=names, replaced=st.booleans())
    def reject(self, name: ObjectName, replaced: bool) -> None:
        stored = self.real.read(name, 1000)
        identity = (0, 0) if stored is None or replaced else stored.identity
        assert self.real.reject(name, identity) == (stored is not None and not replaced)
        if not replaced:
            self.files.pop(name, None)

    @rule(rest=st.integers(0, QUOTA_BYTES))
    def prune(self, rest: int) -> None:
        removed: list[ObjectName] = []
        for name in self.in_order():
            if self.num_bytes() > rest:
                removed.append(name)
                del self.files[name]
        assert [info.name for info in self.real.prune(rest)] == removed

    @rule(name=names)
    def remove(self, name: ObjectName) -> None:
        assert self.real.remove([name]) == (self.files.pop(name, None) is not None)

    @rule()
    def flush(self) -> None:
        self.now_ns += 100 * SECOND_NS
        self.real.flush_touches()

    @rule()
    def reopen(self) -> None:
        self.real.close()
        self.evictions = 0
        self.real = self.open()

    @rule()
    def pass_midnight(self) -> None:
        self.now_ns = (self.now_ns // DAY_NS + 1) * DAY_NS
        self.today_bytes = 0

    @invariant()
    def agrees(self) -> None:
        self.real.check()
        found = [(i.name, (i.num_bytes, i.used_ns)) for i in self.real.objects()]
        assert found == [(name, self.files[name]) for name in self.in_order()]
        assert self.on_disk() == {name: size for name, (size, _) in self.files.items()}
        usage = self.real.usage()
        assert (usage.num_objects, usage.num_bytes) == (len(self.files), self.num_bytes())
        assert usage.written_today_bytes == self.today_bytes
        assert self.real.counters.cache().evictions == self.evictions
        assert all(self.real.contains(name) == (name in self.files) for name in NAMES)


class SharedMachine(StoreMachine):
    """CT-9: two stores share a folder, as processes do, while somebody deletes files."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = [self.open(), self.open()]
        self.disturbed = False  # files were deleted since a store was opened

    def teardown(self) -> None:
        last = self.open()
        last.check()
        assert {i.name: i.num_bytes for i in last.objects()} == self.on_disk()
        for store in (last, *self.stores):
            store.close()
        super().teardown()

    stores_by = st.integers(0, 1)

    @rule(by=stores_by, name=names, size=sizes)
    def write(self, by: int, name: ObjectName, size: int) -> None:
        there = name in self.on_disk()
        outcome = self.stores[by].write(name, self.content(name, size), self.tick())
        assert (outcome is PRESENT) == there
        assert (name in self.on_disk()) == (outcome in (WRITTEN, PRESENT))
        assert self.stores[by].contains(name) == (outcome in (WRITTEN, PRESENT))
        assert outcome in (WRITTEN, PRESENT) or size > QUOTA_BYTES, "the newest fits"

    @rule(by=stores_by, chain=st.lists(names, unique=True, max_size=4))
    def use(self, by: int, chain: list[ObjectName]) -> None:
        store, disk = self.stores[by], self.on_disk()
        assert all(store.probe(n) or n not in disk for n in chain)
        store.touch(chain, self.tick())

    @rule(by=stores_by)
    def flush(self, by: int) -> None:
        self.now_ns += 100 * SECOND_NS
        self.stores[by].flush_touches()

    @rule(by=stores_by, name=names)
    def read(self, by: int, name: ObjectName) -> None:
        stored = self.stores[by].read(name, 1000)
        assert (stored is not None) == (name in self.on_disk())
        assert stored is not None or not self.stores[by].contains(name)

    @rule(by=stores_by, name=names)
    def reject(self, by: int, name: ObjectName) -> None:
        stored = self.stores[1 - by].read(name, 1000)
        if stored is not None:
            assert self.stores[by].reject(name, stored.identity)
            assert name not in self.on_disk()

    @rule(by=stores_by, rest=st.integers(0, QUOTA_BYTES))
    def prune(self, by: int, rest: int) -> None:
        self.stores[by].prune(rest)
        self.disturbed = False
        assert {i.name: i.num_bytes for i in self.stores[by].objects()} == self.on_disk()

    @precondition(lambda self: self.on_disk())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.path(data.draw(st.sampled_from(sorted(self.on_disk(), key=NAMES.index)))).unlink()
        self.disturbed = True

    @rule(by=stores_by)
    def kill(self, by: int) -> None:
        """Lose what was not flushed, and open anew."""
        self.stores[by]._contents.directory.close()
        self.stores[by] = self.open()
        self.disturbed = False

    @rule(by=stores_by)
    def reopen(self, by: int) -> None:
        self.stores[by].close()
        self.stores[by] = self.open()
        self.disturbed = False

    @invariant()
    def agrees(self) -> None:
        num_bytes = sum(self.on_disk().values())
        counted = self.stores[0].usage().num_bytes
        assert num_bytes <= QUOTA_BYTES
        assert counted == num_bytes or (self.disturbed and counted > num_bytes)
        for store in self.stores:
            store._contents.index.check()


class ChainMachine(StoreMachine):
    """KV-4: turns along a tree use what is there and write the rest; nothing is orphaned."""

    def __init__(self) -> None:
        super().__init__()
        self.real = self.open()
        self.paths: dict[ObjectName, Path_] = {}

    def teardown(self) -> None:
        self.real.close()
        super().teardown()

    @rule(path=st.lists(st.integers(0, 1), min_size=1, max_size=7), size=st.integers(5, 40))
    def turn(self, path: list[int], size: int) -> None:
        chain = [name_of(tuple(path[: i + 1])) for i in range(len(path))]
        self.paths.update({n: tuple(path[: i + 1]) for i, n in enumerate(chain)})
        stamp_ns = self.tick()
        num_hits = next((i for i, n in enumerate(chain) if not self.real.probe(n)), len(chain))
        self.real.touch(chain[:num_hits], stamp_ns)
        for depth in range(num_hits, len(chain)):
            data = self.content(chain[depth], size)
            if self.real.write(chain[depth], data, stamp_ns - 1000 * depth) is not WRITTEN:
                break

    @rule(rest=st.integers(0, QUOTA_BYTES))
    def prune(self, rest: int) -> None:
        self.real.prune(rest)

    @rule()
    def flush(self) -> None:
        self.now_ns += 40 * SECOND_NS
        self.real.flush_touches()

    @rule()
    def reopen(self) -> None:
        self.real.close()
        self.real = self.open()

    @invariant()
    def no_chain_has_a_hole(self) -> None:
        held = {self.paths[name] for name in self.on_disk()}
        assert all(path[:-1] in held for path in held if len(path) > 1)
        self.real.check()


for machine in (ExactMachine, SharedMachine, ChainMachine):
    machine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


test_a_store_is_a_dictionary = ExactMachine.TestCase
test_processes_share_a_store = SharedMachine.TestCase
test_no_chain_has_a_hole = ChainMachine.TestCase
