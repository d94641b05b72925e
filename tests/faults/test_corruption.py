"""Whatever a file says: an object is what was written, or a miss."""

from __future__ import annotations

import os
import pickle
import random

import pytest
from cold_objects import SMALL

from neve.coldtier.stats import Counters
from neve.coldtier.store.store import ColdStore, StoreLimits, WriteOutcome

FLIPS = 2000
CUTS = 300


class Tier:
    """A store with objects in it that the tests damage in place."""

    def __init__(self, root):
        self.counters = Counters()
        limits = StoreLimits(quota_bytes=100 * SMALL.num_bytes, min_free_bytes=0)
        self.store = ColdStore.open(root, limits, self.counters)
        self.root = root

    def write(self, number):
        """Write an object and return its file."""
        outcome = self.store.write(SMALL.name(number), SMALL.parts(number), number)
        assert outcome is WriteOutcome.WRITTEN
        return self.path(number)

    def path(self, number):
        file_name = SMALL.name(number).file_name
        return self.root / "objects" / file_name[:2] / file_name

    def put(self, number, data):
        """Put bytes in the place of an object, as others could, and return the file."""
        self.path(number).write_bytes(data)
        assert self.store.probe(SMALL.name(number))
        return self.path(number)

    @property
    def corruptions(self):
        return self.counters.cache().corruptions


@pytest.fixture
def tier(tmp_path):
    tier = Tier(tmp_path / "cold")
    yield tier
    tier.store.close()


def check_is_pruned(tier, number, path):
    """Fail unless the object is a miss that removes and counts it, once."""
    before = tier.corruptions
    assert tier.store.contains(SMALL.name(number))
    assert SMALL.restore(tier.store, number) is None
    assert tier.corruptions == before + 1
    assert not path.exists()
    assert not tier.store.contains(SMALL.name(number))
    assert SMALL.restore(tier.store, number) is None
    assert tier.corruptions == before + 1


def check_damage(tier, number, data):
    """Put bytes in the place of an object and fail unless it is pruned."""
    check_is_pruned(tier, number, tier.put(number, data))


def test_sound_object_comes_back(tier):
    """CT-3: what is not damaged is restored, and nothing is counted."""
    tier.write(1)

    assert SMALL.restore(tier.store, 1) == SMALL.payload(1)[1:]
    assert tier.corruptions == 0


def test_flipped_bits(tier):
    """CT-3: one flipped bit anywhere in the file, at 2,000 places, is one corruption each."""
    source = random.Random(3)
    sound = tier.write(1).read_bytes()
    header = int.from_bytes(sound[:8], "little") + 8
    for i in range(FLIPS):
        # header and payload get one half each, whatever their sizes
        low, high = ((0, header), (header, len(sound)))[i % 2]
        place = source.randrange(low, high)
        data = bytearray(sound)
        data[place] ^= 1 << source.randrange(8)
        check_damage(tier, 1, data)

    assert tier.corruptions == FLIPS
    tier.store.check()


def test_cut_files(tier):
    """CT-3: a file that ends early, or goes on too long, is one corruption each."""
    source = random.Random(4)
    sound = tier.write(1).read_bytes()
    lengths = {0, 1, 7, 8, 9, len(sound) - 1, *source.sample(range(len(sound)), CUTS)}
    for length in lengths:
        check_damage(tier, 1, sound[:length])
    check_damage(tier, 1, sound + b"\0")
    check_damage(tier, 1, sound + bytes(10 * len(sound)))
    tier.store.check()


def test_checksum_digits(tier):
    """CT-3: each digit of the checksum counts, and so does its case."""
    sound = tier.write(1).read_bytes()
    start = sound.index(b'"checksum":"') + len(b'"checksum":"')
    for place in range(start, start + 64):
        digit = sound[place : place + 1]
        other = b"0" if digit != b"0" else b"1"
        check_damage(tier, 1, sound[:place] + other + sound[place + 1 :])
    digits = sound[start : start + 64]
    check_damage(tier, 1, sound.replace(digits, digits.upper()))
    check_damage(tier, 1, sound.replace(digits, b"0" * 64))
    check_damage(tier, 1, sound.replace(b'"checksum"', b'"checksux"'))


@pytest.mark.parametrize(
    "data",
    [
        bytes(SMALL.num_bytes),
        b"\xff" * SMALL.num_bytes,
        pickle.dumps({"layer.0.key": b"x" * 100}),
        pickle.dumps(b"x" * SMALL.num_bytes)[: SMALL.num_bytes],
        b"",
    ],
    ids=["zeros", "ones", "pickle", "pickle of the right size", "empty"],
)
def test_foreign_content(tier, data):
    """CT-3: bytes that are no object at all; nothing is ever unpickled."""
    tier.write(1)
    check_damage(tier, 1, data)


def test_swapped_objects(tier):
    """CT-3: a sound object under another one's name is one corruption."""
    paths = [tier.write(1), tier.write(2)]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)

    check_is_pruned(tier, 1, paths[0])
    check_is_pruned(tier, 2, paths[1])


def test_fresh_replacement_is_not_removed(tier):
    """CT-3: an object that a writer put in the place of the unsound one stays."""
    path = tier.write(1)
    path.write_bytes(bytes(SMALL.num_bytes))
    unsound = tier.store.read(SMALL.name(1), SMALL.num_bytes)
    fresh = path.with_name("fresh")
    fresh.write_bytes(SMALL.file_bytes(1))
    fresh.rename(path)
    tier.store.reject(SMALL.name(1), unsound.identity)

    assert tier.corruptions == 1
    assert path.read_bytes() == SMALL.file_bytes(1)
    assert tier.store.probe(SMALL.name(1))
    assert SMALL.restore(tier.store, 1) == SMALL.payload(1)[1:]


def _symlink(path):
    target = path.with_name("target")
    target.write_bytes(SMALL.file_bytes(1))
    path.symlink_to(target)


def _directory(path):
    path.mkdir()
    (path / "inside").write_bytes(b"x")


@pytest.mark.parametrize("obstruct", [_symlink, _directory, os.mkfifo])
def test_no_regular_file(tier, obstruct):
    """CT-8: a link, a folder or a pipe under an object's name is a miss, not a corruption.

    What lies there, and what a link leads to, is left alone by a read.
    """
    path = tier.write(1)
    path.unlink()
    obstruct(path)

    assert SMALL.restore(tier.store, 1) is None
    assert tier.corruptions == 0
    assert os.path.lexists(path)
    assert not tier.store.contains(SMALL.name(1))


@pytest.mark.parametrize("obstruct", [_symlink, _directory, os.mkfifo])
def test_an_obstructed_name_can_be_written_again(tier, obstruct):
    """CT-7: the next write of the object takes its place back."""
    path = tier.write(1)
    path.unlink()
    obstruct(path)
    assert SMALL.restore(tier.store, 1) is None
    tier.write(1)

    assert SMALL.restore(tier.store, 1) == SMALL.payload(1)[1:]
