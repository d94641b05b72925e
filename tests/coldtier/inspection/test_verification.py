"""Proving every object of a store."""

from __future__ import annotations

import attrs
import pytest

from neve.coldtier.inspection.verification import verify_store
from neve.coldtier.objects.format import encode
from neve.coldtier.objects.header import ObjectLayout, TensorSpec
from neve.coldtier.objects.keys import ColdGroup
from neve.ids import Fingerprint

LAYOUT = ObjectLayout(ColdGroup.KV, [TensorSpec("tokens", "U32", (4,))])
FINGERPRINT = Fingerprint(b"f" * 32)


@pytest.fixture
def store(make_store):
    return make_store(quota_bytes=10**6)


@pytest.fixture
def names(store, make_name):
    """Write twelve sound objects."""
    names = [make_name(i) for i in range(12)]
    for i, name in enumerate(names):
        store.write(name, encode(name, FINGERPRINT, LAYOUT, [bytes(16)]), i)
    return names


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("jobs", [None, 1, 3])
def test_sound_store(store, names, jobs):
    """CT-12: every object is read, on any number of threads, and how far it is is told."""
    seen: list[tuple[int, int]] = []
    done = verify_store(store, jobs=jobs, progress=lambda *at: seen.append(at))
    total = 12 * LAYOUT.max_bytes

    assert (done.num_objects, done.num_bytes, done.unsound) == (12, total, ())
    assert seen == [(i * LAYOUT.max_bytes, total) for i in range(1, 13)]


def test_unsound_objects(store, names, path_of):
    """CT-12: what is damaged, cut, or filed under another's name is found, with its cause."""
    damage(path_of(names[3]))
    path_of(names[5]).write_bytes(b"short")
    path_of(names[7]).write_bytes(path_of(names[8]).read_bytes())
    done = verify_store(store)

    assert {(found.name, found.cause, found.removed) for found in done.unsound} == {
        (names[3], "checksum", False),
        (names[5], "format", False),
        (names[7], "format", False),
    }
    assert all(path_of(name).exists() for name in names)
    assert store.counters.cache().corruptions == 0


def test_prune(store, names, path_of):
    """CT-12: with prune, what is unsound goes, and nothing else."""
    damage(path_of(names[3]))
    done = verify_store(store, prune=True)

    assert [(found.name, found.removed) for found in done.unsound] == [(names[3], True)]
    assert not path_of(names[3]).exists()
    assert len(store.objects()) == 11
    assert verify_store(store).unsound == ()


def test_whole_object_in_the_place_of_a_torn_one(store, names, path_of):
    """CT-12: an object that was rewritten since the store was listed is judged as it is."""
    infos = [attrs.evolve(info, num_bytes=10) for info in store.objects()]
    store.objects = lambda: infos

    assert verify_store(store, prune=True).unsound == ()


def test_object_that_has_gone(store, names, path_of):
    """CT-12: an object that another process removes meanwhile is no fault."""
    path_of(names[0]).unlink()
    done = verify_store(store)

    assert (done.num_objects, done.unsound) == (11, ())


def test_object_that_cannot_be_read(store, names, path_of, monkeypatch):
    """CT-12: a file that is there and can't be read is a fault, and can be removed."""
    read = store.read
    monkeypatch.setattr(
        store, "read", lambda name, size: None if name == names[0] else read(name, size)
    )
    done = verify_store(store, prune=True)

    assert [(f.name, f.cause, f.removed) for f in done.unsound] == [
        (names[0], "unreadable", True)
    ]
    assert not path_of(names[0]).exists()


def test_interruption(store, names):
    """CT-12: whoever interrupts does not wait for the rest."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_store(store, jobs=1, progress=interrupt)
