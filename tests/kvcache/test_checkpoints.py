from __future__ import annotations

import pytest

from neve.ids import BlockHash
from neve.kvcache.checkpoints import Checkpoint, Checkpoints

BLOCK_SIZE = 16


def chain(name: str, length: int = 12, shared: int = 0) -> list[BlockHash]:
    """Return hashes of which the first `shared` are those of every chain."""
    names = ["common"] * shared + [name] * (length - shared)
    return [BlockHash(f"{n}{i}".encode()) for i, n in enumerate(names)]


def make(
    num_blocks: int, owner: str = "a", name: str = "x", num_bytes: int = 1, shared: int = 0
) -> Checkpoint:
    hashes = chain(name, shared=shared)
    return Checkpoint(owner, hashes, num_blocks, num_blocks * BLOCK_SIZE, num_bytes)


def test_a_checkpoint_is_found_by_its_prefix() -> None:
    """GR-5: the last block's hash names the prefix, and so the state."""
    checkpoints, entry = Checkpoints(), make(3)
    checkpoints.put(entry)

    assert checkpoints.get(chain("x")[2]) is entry
    assert checkpoints.get(chain("x")[1]) is None
    assert checkpoints.get(chain("y")[2]) is None


def test_checkpoints_stand_in_publish_order() -> None:
    """SD-6: what is published again is the newest; another owner's one stays beside it."""
    checkpoints = Checkpoints()
    first, second, third, fourth = make(2), make(3), make(2, owner="b"), make(2)
    for entry in (first, second, third, fourth):
        checkpoints.put(entry)

    assert checkpoints.entries == (second, third, fourth)
    assert checkpoints.get(fourth.hash) is fourth
    checkpoints.drop(fourth)
    assert checkpoints.get(fourth.hash) is third


def test_bytes_add_up() -> None:
    """SD-6: the account is that of what is kept."""
    checkpoints = Checkpoints()
    for num_blocks in (1, 2, 3):
        checkpoints.put(make(num_blocks, num_bytes=10 * num_blocks))
    checkpoints.drop(checkpoints.entries[1])
    checkpoints.drop(make(3))

    assert (len(checkpoints), checkpoints.num_bytes) == (2, 40)
    checkpoints.clear()
    assert (len(checkpoints), checkpoints.num_bytes, checkpoints.entries) == (0, 0, ())


@pytest.mark.parametrize(
    ("num_blocks", "deepest"), [(0, 0), (1, 0), (2, 2), (4, 2), (5, 5), (12, 5)]
)
def test_the_deepest_boundary_lies_within_a_chain(num_blocks: int, deepest: int) -> None:
    """GR-5: a state is used at just its own boundary, so the answer is one of those."""
    checkpoints = _filled(make(5), make(2), make(3, name="y"))

    assert checkpoints.deepest_boundary(chain("x")[:num_blocks]) == deepest


def _filled(*entries: Checkpoint) -> Checkpoints:
    checkpoints = Checkpoints()
    for entry in entries:
        checkpoints.put(entry)
    return checkpoints


def test_chains_share_the_checkpoints_of_their_common_prefix() -> None:
    """GR-5: another chain finds what lies before they part, and nothing behind it."""
    checkpoints = _filled(make(2, shared=3), make(4, shared=3))

    assert checkpoints.deepest_boundary(chain("y", shared=3)) == 2


def test_ancestors_are_shorter_prefixes() -> None:
    """SD-6: of two checkpoints of one chain the shorter is the ancestor."""
    short, long, other = make(2, shared=2), make(4, shared=2), make(4, name="y", shared=2)

    assert short.is_ancestor_of(long)
    assert short.is_ancestor_of(other)
    assert not long.is_ancestor_of(short)
    assert not long.is_ancestor_of(other)
    assert not short.is_ancestor_of(short)


def test_a_chain_must_reach_the_boundary() -> None:
    """SD-6: a checkpoint without its last hash could not be found."""
    with pytest.raises(ValueError, match="after 3 blocks needs their hashes, got 2"):
        Checkpoint("a", chain("x", 2), 3, 48)
