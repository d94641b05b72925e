"""What goes first from a store of real objects: what cannot be restored any more."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neve.coldtier.objects.format import encode, encode_tokens, sidecar_layout
from neve.coldtier.objects.geometry import KvGeometry, kv_layout
from neve.coldtier.objects.keys import ROOT, ColdGroup, ObjectName
from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits, WriteOutcome
from neve.contract.page_format import keys_and_values
from neve.contract.sidecar import SidecarLayout, SidecarTensor
from neve.ids import ColdKey, Fingerprint

SECOND_NS = 10**9
MODEL = Fingerprint(bytes(32))
GEOMETRY = KvGeometry(2, 1, keys_and_values(1, 8, 8), "F32")
KINDS = [None, ColdGroup.CONV_STATE, ColdGroup.SLIDING_WINDOW]
"""Full attention, recurrent layers, windows."""

every_kind = pytest.mark.parametrize("kind", KINDS)
Path_ = tuple[int, ...]


def key_of(path: Path_) -> ColdKey:
    return ColdKey(hashlib.sha256(repr(path).encode()).digest()) if path else ROOT


class Disk:
    """A store in which each request opens anew, as a process would, but for the clock."""

    def __init__(self, root: Path, quota_bytes: int, kind: ColdGroup | None) -> None:
        self.root = root
        self.quota_bytes = quota_bytes
        self.kind = kind
        self.now_ns = 1_800_000_000 * SECOND_NS

    def open(self) -> ColdStore:
        limits = StoreLimits(self.quota_bytes, 0, None)
        return ColdStore.open(self.root, limits, Counters(), lambda: self.now_ns)

    def block(self, path: Path_) -> tuple[ObjectName, list[bytes | memoryview]]:
        name, layout = ObjectName(key_of(path)), kv_layout(GEOMETRY, self.kind)
        payload = [encode_tokens(range(2)), *(bytes(t.num_bytes) for t in layout.tensors[1:])]
        return name, list(encode(name, MODEL, layout, payload, key_of(path[:-1])))  # type: ignore[arg-type]

    def state(self, path: Path_) -> tuple[ObjectName, list[bytes | memoryview]]:
        assert self.kind is not None
        name = ObjectName(key_of((*path, -1)), self.kind)
        tensors = SidecarLayout(1, [SidecarTensor("x", (50,), "float32")])
        layout = sidecar_layout(self.kind, tensors, 2 * len(path))
        return name, list(encode(name, MODEL, layout, [bytes(200)], key_of(path)))  # type: ignore[arg-type]

    def request(self, store: ColdStore, path: Path_, boundaries: Sequence[int]) -> bool:
        """Use a chain as a capture does: blocks from the head on, then states."""
        self.now_ns += 100 * SECOND_NS
        stamp_ns = self.now_ns
        chain = [path[: i + 1] for i in range(len(path))]
        store.touch([ObjectName(key_of(p)) for p in chain], stamp_ns)
        for depth, prefix in enumerate(chain):
            name, parts = self.block(prefix)
            outcome = store.write(name, parts, stamp_ns - 1000 * depth)
            if outcome not in (WriteOutcome.WRITTEN, WriteOutcome.PRESENT):
                return False
        for boundary in sorted(boundaries, reverse=True) if self.kind else ():
            name, parts = self.state(path[:boundary])
            stamp = stamp_ns - 1000 * boundary + 500
            store.touch([name], stamp)
            store.write(name, parts, stamp)
        return True

    def reach(self, store: ColdStore, path: Path_) -> int:
        """Return how many blocks of a chain would come back."""
        whole = 0
        while whole < len(path) and store.contains(ObjectName(key_of(path[: whole + 1]))):
            whole += 1
        if self.kind is None:
            return whole
        states = (n for n in range(whole, 0, -1) if store.contains(self.state(path[:n])[0]))
        return next(states, 0)

    def useless(self, store: ColdStore, paths: Sequence[Path_]) -> set[ObjectName]:
        """Return what a store holds that no request could restore."""
        useful: set[ObjectName] = set()
        for path in paths:
            for end in range(self.reach(store, path), 0, -1):
                useful.add(ObjectName(key_of(path[:end])))
                useful.add(self.state(path[:end])[0] if self.kind else ObjectName(ROOT))
        return {info.name for info in store.objects()} - useful


@pytest.fixture(autouse=True)
def _no_fsync() -> Iterator[None]:
    with mock.patch.object(os, "fsync"):
        yield


@pytest.fixture
def disk(tmp_path: Path, kind: ColdGroup | None) -> Disk:
    return Disk(tmp_path / "cold", 2**30, kind)


def held_bytes(store: ColdStore) -> int:
    return sum(info.num_bytes for info in store.objects())


requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple),
        st.lists(st.integers(1, 8), max_size=2),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(requests, st.sampled_from(KINDS), st.integers(0, 100))
def test_a_pruned_store_holds_what_can_come_back(
    asked: list[tuple[Path_, list[int]]], kind: ColdGroup | None, percent: int
) -> None:
    """KV-4, CT-12: nothing stays for the sake of what was removed; what stays is the newest."""
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder) / "cold", 2**30, kind)
        store = disk.open()
        for path, above in asked:
            disk.request(store, path, [len(path), *(n for n in above if n < len(path))])
        newest, paths = asked[-1][0], [path for path, _ in asked]
        target, total = held_bytes(store) * percent // 100, held_bytes(store)
        store.close()

        store = disk.open()
        gone = store.prune(target)
        assert held_bytes(store) == total - sum(info.num_bytes for info in gone) <= target
        assert not gone or not disk.useless(store, paths)
        store.check()
        own = sum(sum(map(len, disk.block(newest[: i + 1])[1])) for i in range(len(newest)))
        states = {len(newest), *asked[-1][1]} if kind else set[int]()
        states |= {n for path, above in asked for n in (len(path), *above) if kind}
        if own + 1000 * len(states) <= target:
            assert disk.reach(store, newest) == len(newest)
        store.close()


@settings(max_examples=40, deadline=None)
@given(requests, st.sampled_from(KINDS), st.integers(2000, 12_000), st.booleans())
def test_under_a_quota_what_is_lost_goes_first(
    asked: list[tuple[Path_, list[int]]], kind: ColdGroup | None, quota: int, again: bool
) -> None:
    """KV-4, CT-7: while something useless is there, no useful object is evicted."""
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(Path(folder) / "cold", quota, kind)
        store, paths = disk.open(), list[Path_]()
        for path, above in asked:
            paths.append(path)
            if again:  # what objects need is read from the disk
                store.close()
                store = disk.open()
            stamp = disk.now_ns + 100 * SECOND_NS
            useless = disk.useless(store, paths)
            before = {name for name in (i.name for i in store.objects()) if name not in useless}
            disk.request(store, path, [len(path), *(n for n in above if n < len(path))])
            left = {i.name for i in store.objects() if i.used_ns < stamp - 10 * SECOND_NS}
            if before - {i.name for i in store.objects()}:
                assert not left & useless, "the useless went before"
            store.check()
        assert held_bytes(store) <= quota
        store.close()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_chain_shrinks_to_its_next_state(disk: Disk) -> None:
    """KV-4, CT-12: with its deepest state go the blocks that only it could give back."""
    store, path = disk.open(), tuple(range(12))
    disk.request(store, path, [3, 12])
    size, total = len(b"".join(disk.block(path)[1])), held_bytes(store)

    assert len(store.prune(total * 9 // 10, dry_run=True)) == 1 + 9
    store.prune(total * 9 // 10)
    assert disk.reach(store, path) == 3
    assert len(store.objects()) == 4
    assert len(store.prune(3 * size)) == 4
    assert not store.objects()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_removed_state_takes_its_blocks_first(disk: Disk) -> None:
    """KV-4, CT-7: blocks that lost their state go before a chain that is older but whole."""
    store, old, new = disk.open(), (0, 0, 0), (1, 1, 1)
    disk.request(store, old, [3])
    disk.request(store, new, [3])
    store.remove([disk.state(new)[0]])
    victims = store.prune(held_bytes(store) - 1, dry_run=True)

    assert [info.name for info in victims] == [ObjectName(key_of(new))]
    store.prune(held_bytes(store) - 3 * len(b"".join(disk.block(new)[1])))
    assert disk.reach(store, old) == 3
    store.close()


@every_kind
def test_what_has_a_hole_before_it_goes_first(disk: Disk) -> None:
    """KV-4, CT-12: whoever deletes a block makes all that comes after it the next to go."""
    store, old, new = disk.open(), (0, 0, 0), (1, 1, 1)
    disk.request(store, old, [3])
    disk.request(store, new, [1, 3])
    store.remove([ObjectName(key_of(new[:2]))])
    lost = {ObjectName(key_of(new))} | ({disk.state(new)[0]} if disk.kind else set())
    size = sum(info.num_bytes for info in store.objects() if info.name in lost)

    assert {info.name for info in store.prune(held_bytes(store) - size)} == lost


@pytest.mark.parametrize(("seconds", "goes"), [(1, "old"), (100, "new")])
@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_walk_under_way_is_not_overtaken(disk: Disk, seconds: int, goes: str) -> None:
    """CT-9: blocks whose state is yet to come have a minute before they count as lost."""
    store, chains = disk.open(), {"old": (0, 0, 0), "new": (1, 1)}
    disk.request(store, chains["old"], [3])
    disk.request(store, chains["new"], [])
    disk.quota_bytes = held_bytes(store)
    other = disk.open()
    name, parts = disk.block((7,))

    assert other.write(name, parts, disk.now_ns + seconds * SECOND_NS) is WriteOutcome.WRITTEN
    held = {info.name for info in other.objects()}
    whole = [n for n, path in chains.items() if ObjectName(key_of(path)) in held]
    assert goes not in whole
    assert len(whole) == 1
    for opened in (store, other):
        opened.close()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_use_counts_for_the_states_on_the_way(disk: Disk) -> None:
    """KV-4: a chain that goes on keeps its earlier states for longer than its later ones."""
    store, chat = disk.open(), (0, 0, 0, 0, 0, 0)
    disk.request(store, chat[:3], [3])
    disk.request(store, (1, 1), [2])
    store.close()
    store = disk.open()
    disk.request(store, chat, [6])
    total = held_bytes(store)
    gone = [info.name for info in store.prune(total * 7 // 10)]

    assert disk.state((1, 1))[0] in gone
    assert disk.reach(store, chat) >= 3
    store.close()
