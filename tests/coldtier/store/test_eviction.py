from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from neve.coldtier.objects.keys import ObjectName
from neve.coldtier.store.directory import StoreDirectory
from neve.coldtier.store.store import ColdStore, WriteOutcome

MakeName = Callable[..., ObjectName]
MakeStore = Callable[..., ColdStore]
PathOf = Callable[[ObjectName], Path]


def fill(store: ColdStore, clock, names: list[ObjectName], num_bytes: int = 100) -> None:
    """Write objects of a size, a second apart."""
    for name in names:
        stamp_ns = clock.advance(1)
        assert store.write(name, [bytes(num_bytes)], stamp_ns) is WriteOutcome.WRITTEN


def held(store: ColdStore) -> list[ObjectName]:
    return [info.name for info in store.objects()]


def evictions(store: ColdStore) -> int:
    return store.counters.cache().evictions


def test_the_quota_holds(make_store: MakeStore, make_name: MakeName, clock) -> None:
    """CT-7: as many objects go as a new one needs, the least recently used first."""
    store = make_store(quota_bytes=1000)
    names = [make_name(i) for i in range(10)]
    fill(store, clock, names)
    store.touch([names[0]], clock.advance(1))
    fill(store, clock, [make_name("new")], 250)

    assert held(store) == [*names[4:], names[0], make_name("new")]
    assert (store.usage().num_bytes, evictions(store)) == (950, 3)
    store.check()


def test_what_can_never_fit_evicts_nothing(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-7: an object larger than the quota is refused before it costs anything."""
    store = make_store(quota_bytes=1000)
    names = [make_name(i) for i in range(10)]
    fill(store, clock, names)
    monkeypatch.setattr(os, "writev", None)

    assert store.write(make_name("new"), [bytes(1001)], clock.advance(1)) is WriteOutcome.QUOTA
    assert held(store) == names


def test_only_what_was_used_before_gives_way(
    make_store: MakeStore, make_name: MakeName, clock
) -> None:
    """KV-4: a chain that is larger than the store keeps its beginning, without a hole."""
    store = make_store(quota_bytes=350)
    chain = [make_name(i) for i in range(5)]
    now_ns = clock.advance(1)
    outcomes = [store.write(n, [bytes(100)], now_ns - 1000 * i) for i, n in enumerate(chain)]

    assert outcomes == [WriteOutcome.WRITTEN] * 3 + [WriteOutcome.QUOTA] * 2
    assert held(store) == chain[2::-1]
    assert evictions(store) == 0


def test_the_free_space_holds(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-7: it is measured again after each eviction, and no more goes than it takes."""
    store = make_store(min_free_bytes=500)
    names = [make_name(i) for i in range(5)]
    fill(store, clock, names)
    others_bytes = 10_000 - 800
    usage = store._contents.ledger
    monkeypatch.setattr(
        StoreDirectory, "free_bytes", lambda _: 10_000 - others_bytes - usage.num_bytes
    )

    assert store.write(make_name(5), [bytes(100)], clock.advance(1)) is WriteOutcome.WRITTEN
    assert held(store) == [make_name(i) for i in range(3, 6)]
    store.check()


def test_a_full_disk_evicts_nothing_in_vain(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-7: if all that is ours would not free enough, it stays and the write is refused."""
    store = make_store(min_free_bytes=5000)
    monkeypatch.setattr(StoreDirectory, "free_bytes", lambda _: 10_000)
    names = [make_name(i) for i in range(5)]
    fill(store, clock, names)
    monkeypatch.setattr(StoreDirectory, "free_bytes", lambda _: 4500)
    new = make_name("new")

    assert store.write(new, [bytes(1)], clock.advance(1)) is WriteOutcome.FREE_SPACE
    assert held(store) == names


def test_evicting_ends_when_it_frees_nothing(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-7: a file system that gives nothing back ends in a refusal, not in a loop."""
    store = make_store(min_free_bytes=5000)
    monkeypatch.setattr(StoreDirectory, "free_bytes", lambda _: 10_000)
    fill(store, clock, [make_name(i) for i in range(5)])
    monkeypatch.setattr(StoreDirectory, "free_bytes", lambda _: 4950)
    new = make_name("new")

    assert store.write(new, [bytes(50)], clock.advance(1)) is WriteOutcome.FREE_SPACE
    store.check()


def test_a_day_has_its_limit(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-10: past it nothing is written, whatever was removed meanwhile, until midnight."""
    store = make_store(daily_write_bytes=250)
    fill(store, clock, [make_name(0), make_name(1)])
    store.clear()
    new = make_name("new")
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", None)

        assert store.write(new, [bytes(51)], clock.advance(1)) is WriteOutcome.DAILY_LIMIT
    clock.advance(86400)
    assert store.write(new, [bytes(51)], clock.now_ns) is WriteOutcome.WRITTEN
    assert store.usage().written_today_bytes == 51


def test_the_day_is_shared_and_survives(
    make_store: MakeStore, make_name: MakeName, clock
) -> None:
    """CT-10: the limit counts what all processes wrote, before a restart as well."""
    fill(make_store(), clock, [make_name(0)])
    other = make_store(daily_write_bytes=150)

    assert other.write(make_name(1), [bytes(51)], clock.now_ns) is WriteOutcome.DAILY_LIMIT
    assert other.write(make_name(1), [bytes(50)], clock.now_ns) is WriteOutcome.WRITTEN


def test_the_quota_holds_across_processes(
    make_store: MakeStore, make_name: MakeName, clock, path_of: PathOf
) -> None:
    """CT-9: one evicts for what the other wrote, and takes what it removed as gone."""
    ours, theirs = make_store(quota_bytes=400), make_store(quota_bytes=400)
    fill(ours, clock, [make_name(0), make_name(1)])
    fill(theirs, clock, [make_name(2), make_name(3), make_name(4)])

    assert sorted(
        p.name for p in map(path_of, map(make_name, range(5))) if p.exists()
    ) == sorted(make_name(i).file_name for i in range(1, 5))
    fill(ours, clock, [make_name(5)])
    assert [i for i in range(6) if path_of(make_name(i)).exists()] == [2, 3, 4, 5]
    ours.check()
    theirs.check()


def test_a_use_by_another_process_counts(
    make_store: MakeStore, make_name: MakeName, clock, path_of: PathOf
) -> None:
    """CT-9: what another process used and wrote down is not evicted in its old place."""
    ours, theirs = make_store(quota_bytes=300), make_store(quota_bytes=300)
    names = [make_name(i) for i in range(3)]
    fill(ours, clock, names)
    assert theirs.probe(names[0])
    theirs.touch([names[0]], clock.advance(100))
    theirs.flush_touches()
    fill(ours, clock, [make_name("new")])

    assert held(ours) == [names[2], names[0], make_name("new")]
    assert path_of(names[0]).exists()


def test_what_cannot_be_removed_is_passed_over(
    make_store: MakeStore, make_name: MakeName, clock, monkeypatch
) -> None:
    """CT-7: an object that resists stays, and the next one goes."""
    store = make_store(quota_bytes=300)
    names = [make_name(i) for i in range(3)]
    fill(store, clock, names)
    unlink = os.unlink

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        if path == names[0].file_name:
            raise PermissionError(1, "Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    fill(store, clock, [make_name("new")])

    assert held(store) == [names[0], names[2], make_name("new")]
    store.check()


def test_deleted_objects_make_room(
    make_store: MakeStore, make_name: MakeName, clock, path_of: PathOf
) -> None:
    """CT-9: when somebody deletes objects, the accounts are put right before one is evicted."""
    store = make_store(quota_bytes=1000)
    names = [make_name(i) for i in range(10)]
    fill(store, clock, names)
    for name in names[:5]:
        path_of(name).unlink()
    fill(store, clock, [make_name(i) for i in range(10, 15)])

    assert held(store) == [*names[5:], *(make_name(i) for i in range(10, 15))]
    store.check()


def test_a_clock_that_was_set_back_stops_nothing(
    make_store: MakeStore, make_name: MakeName, clock
) -> None:
    """CT-7: objects from the future become the newest of now, and then age like the others."""
    store = make_store(quota_bytes=300)
    names = [make_name(i) for i in range(3)]
    fill(store, clock, names)
    clock.advance(-7200)
    first = store.write(make_name("first"), [bytes(100)], clock.now_ns)
    second = store.write(make_name("second"), [bytes(100)], clock.advance(1))

    assert (first, second) == (WriteOutcome.QUOTA, WriteOutcome.WRITTEN)
    assert held(store) == [*names[1:], make_name("second")]
    store.check()


@pytest.mark.parametrize("quota_bytes", [0, 99])
def test_a_quota_for_nothing(
    make_store: MakeStore, make_name: MakeName, clock, quota_bytes: int
) -> None:
    """CT-7: a store without room refuses every write."""
    store = make_store(quota_bytes=quota_bytes)

    assert store.write(make_name(0), [bytes(100)], clock.now_ns) is WriteOutcome.QUOTA
    assert store.usage().num_bytes == 0
