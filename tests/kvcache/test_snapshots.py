from __future__ import annotations

import pytest

from neve.ids import BlockHash
from neve.kvcache.snapshots import Snapshot, Snapshots

BLOCK_SIZE = 16


def chain(name: str, length: int = 12, shared: int = 0) -> list[BlockHash]:
    """Return hashes of which the first `shared` are those of every chain."""
    names = ["common"] * shared + [name] * (length - shared)
    return [BlockHash(f"{n}{i}".encode()) for i, n in enumerate(names)]


def make(
    num_blocks: int, owner: str = "a", name: str = "x", num_bytes: int = 1, shared: int = 0
) -> Snapshot:
    hashes = chain(name, shared=shared)
    return Snapshot(owner, hashes, num_blocks, num_blocks * BLOCK_SIZE, num_bytes)


def test_a_snapshot_is_found_by_its_prefix() -> None:
    """GR-5: the last block's hash names the prefix, and so the state."""
    snapshots, entry = Snapshots(), make(3)
    snapshots.put(entry)

    assert snapshots.get(chain("x")[2]) is entry
    assert snapshots.get(chain("x")[1]) is None
    assert snapshots.get(chain("y")[2]) is None


def test_snapshots_stand_in_publish_order() -> None:
    """SD-6: what is published again is the newest; another owner's one stays beside it."""
    snapshots = Snapshots()
    first, second, third, fourth = make(2), make(3), make(2, owner="b"), make(2)
    for entry in (first, second, third, fourth):
        snapshots.put(entry)

    assert snapshots.entries == (second, third, fourth)
    assert snapshots.get(fourth.hash) is fourth
    snapshots.drop(fourth)
    assert snapshots.get(fourth.hash) is third


def test_bytes_add_up() -> None:
    """SD-6: the account is that of what is kept."""
    snapshots = Snapshots()
    for num_blocks in (1, 2, 3):
        snapshots.put(make(num_blocks, num_bytes=10 * num_blocks))
    snapshots.drop(snapshots.entries[1])
    snapshots.drop(make(3))

    assert (len(snapshots), snapshots.num_bytes) == (2, 40)
    snapshots.clear()
    assert (len(snapshots), snapshots.num_bytes, snapshots.entries) == (0, 0, ())


@pytest.mark.parametrize(
    ("num_blocks", "deepest"), [(0, 0), (1, 0), (2, 2), (4, 2), (5, 5), (12, 5)]
)
def test_the_deepest_boundary_lies_within_a_chain(num_blocks: int, deepest: int) -> None:
    """GR-5: a state is used at just its own boundary, so the answer is one of those."""
    snapshots = _filled(make(5), make(2), make(3, name="y"))

    assert snapshots.deepest_boundary(chain("x")[:num_blocks]) == deepest


def _filled(*entries: Snapshot) -> Snapshots:
    snapshots = Snapshots()
    for entry in entries:
        snapshots.put(entry)
    return snapshots


def test_chains_share_the_snapshots_of_their_common_prefix() -> None:
    """GR-5: another chain finds what lies before they part, and nothing behind it."""
    snapshots = _filled(make(2, shared=3), make(4, shared=3))

    assert snapshots.deepest_boundary(chain("y", shared=3)) == 2


def test_ancestors_are_shorter_prefixes() -> None:
    """SD-6: of two snapshots of one chain the shorter is the ancestor."""
    short, long, other = make(2, shared=2), make(4, shared=2), make(4, name="y", shared=2)

    assert short.is_ancestor_of(long)
    assert short.is_ancestor_of(other)
    assert not long.is_ancestor_of(short)
    assert not long.is_ancestor_of(other)
    assert not short.is_ancestor_of(short)


def test_a_chain_must_reach_the_boundary() -> None:
    """SD-6: a snapshot without its last hash could not be found."""
    with pytest.raises(ValueError, match="after 3 blocks needs their hashes, got 2"):
        Snapshot("a", chain("x", 2), 3, 48)
