from __future__ import annotations

import threading

import attrs
import pytest

from neve.coldtier.stats import ColdCacheStats, ColdSidecarStats, Counters


def test_nothing_is_counted_without_a_store():
    """CT-7: both types answer, with zeros, when no store could be opened."""
    counters = Counters()

    assert counters.cache() == ColdCacheStats()
    assert not counters.cache().enabled
    assert counters.sidecar() == ColdSidecarStats()


def test_a_root_makes_it_enabled():
    """CT-7: the tier's identity is the store's, not counted."""
    stats = Counters().cache(root="/somewhere", quota_bytes=5)

    assert (stats.enabled, stats.root, stats.quota_bytes) == (True, "/somewhere", 5)


def test_counts_add_up_by_name():
    """CT-1: every field but the identity is a count of its own."""
    counters = Counters()
    fields = {field.name for field in attrs.fields(ColdCacheStats)}
    counts = {
        name: i for i, name in enumerate(fields - {"enabled", "root", "quota_bytes"}, start=1)
    }
    counters.add(**counts)
    counters.add(**counts)
    stats = attrs.asdict(counters.cache())

    assert {name: stats[name] for name in counts} == {n: 2 * c for n, c in counts.items()}


def test_sidecars_have_counts_of_their_own():
    """SD-7: `enqueued` of the sidecars is not that of the tier."""
    counters = Counters()
    counters.add(enqueued=3)
    counters.add_sidecar(enqueued=1, installed=2)

    assert counters.cache().enqueued == 3
    assert attrs.evolve(counters.sidecar(), enqueued=0, installed=0) == ColdSidecarStats()
    assert (counters.sidecar().enqueued, counters.sidecar().installed) == (1, 2)


@pytest.mark.parametrize("name", ["enabled", "root", "hit"])
def test_only_counts_can_be_added_to(name):
    """CT-1: a count that does not exist is a mistake, not a new count."""
    counters = Counters()
    with pytest.raises(KeyError):
        counters.add(**{name: 1})
    with pytest.raises(KeyError):
        counters.add_sidecar(**{name: 1})


def test_snapshot_does_not_follow():
    """CT-1: stats are the counts of one moment."""
    counters = Counters()
    before = counters.cache()
    counters.add(hits=1)

    assert (before.hits, counters.cache().hits) == (0, 1)


def test_threads_lose_no_count():
    """CT-5: engine, reader and writer add at the same time."""
    counters = Counters()

    def work() -> None:
        for _ in range(2000):
            counters.add(hits=1, bytes_restored=2)
            counters.add_sidecar(installed=1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (counters.cache().hits, counters.cache().bytes_restored) == (8000, 16000)
    assert counters.sidecar().installed == 8000
