from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.objects.keys import ColdChain, ColdGroup, ObjectName
from neve.coldtier.transfer.walk import plan_restore
from neve.contract.sidecar import SidecarLayout, SidecarPolicy, SidecarTensor
from neve.ids import SHARED_DOMAIN, Fingerprint, SaltDomain

MODEL = Fingerprint(bytes(32))
SIZE = 2
TOKENS = list(range(40))
LIMIT = len(TOKENS) // SIZE
POLICY = SidecarPolicy(
    "conv_state", SidecarLayout(1, [SidecarTensor("conv", (2, 3), "float32")])
)


class FakeIndex:
    """Objects that are known, objects that only the disk knows, and looks at the disk."""

    def __init__(self, known=(), on_disk=()) -> None:
        self.known = set(known)
        self.on_disk = set(on_disk)
        self.looks: list[ObjectName] = []

    def contains(self, name):
        return name in self.known

    def probe(self, name):
        if name in self.known:
            return True
        self.looks.append(name)
        if name in self.on_disk:
            self.known.add(name)
        return name in self.known


def make_chain(salt=SHARED_DOMAIN) -> ColdChain:
    return ColdChain(MODEL, SIZE, salt)


def block_names(count, salt=SHARED_DOMAIN) -> list[ObjectName]:
    chain = make_chain(salt)
    chain.extend(TOKENS, LIMIT)
    return chain.blocks[:count]


def state_names(boundaries, salt=SHARED_DOMAIN) -> list[ObjectName]:
    """Return the sidecars at the ends of so many blocks."""
    chain = make_chain(salt)
    chain.extend(TOKENS, LIMIT)
    return [chain.sidecar(ColdGroup.CONV_STATE, TOKENS, n * SIZE) for n in boundaries]


def plan(index, first=0, limit=LIMIT, *, policy=None, salt=SHARED_DOMAIN):
    return plan_restore(index, make_chain(salt), TOKENS, first, limit, policy=policy, salt=salt)


def test_all_that_was_asked_for_has_no_cause():
    """CT-1: a chain that is there to its end is planned to its end."""
    found = plan(FakeIndex(block_names(LIMIT)))

    assert (found.first, found.end, found.cause) == (0, LIMIT, None)
    assert found.num_blocks == LIMIT


def test_plan_ends_at_the_first_hole():
    """CT-1: nothing behind a hole can be used, so nothing behind it is planned."""
    names = block_names(LIMIT)
    found = plan(FakeIndex([*names[:5], *names[6:]]))

    assert (found.first, found.end, found.cause) == (0, 5, "no_block")


def test_plan_begins_behind_what_memory_holds():
    """CT-1: the walk extends a hit; blocks that memory holds need not be on disk."""
    names = block_names(LIMIT)
    index = FakeIndex(names[3:7])
    found = plan(index, first=3)

    assert (found.first, found.end, found.cause) == (3, 7, "no_block")
    assert index.looks == [names[7]]


def test_plan_stops_at_its_limit():
    """KV-8: blocks beyond what is wanted are not even looked for."""
    index = FakeIndex(block_names(LIMIT))
    found = plan(index, first=1, limit=4)

    assert (found.end, found.cause, index.looks) == (4, None, [])


def test_nothing_wanted_is_nothing_missed():
    """CT-1: a walk of no blocks looks at nothing and has no cause."""
    index = FakeIndex()
    found = plan(index, first=4, limit=4, policy=POLICY)

    assert (found.num_blocks, found.cause, index.looks) == (0, None, [])


def test_one_look_at_the_disk_a_walk():
    """CT-9: only where the index ends is the disk looked at, once if nothing is there."""
    names = block_names(LIMIT)
    index = FakeIndex(names[:4])
    plan(index)

    assert index.looks == [names[4]]


def test_blocks_of_another_process_are_found():
    """CT-9: what the disk has and the index has not is found, up to the first hole."""
    names = block_names(LIMIT)
    index = FakeIndex(names[:4], on_disk=names[4:6])

    assert plan(index).end == 6
    assert index.looks == names[4:7]


def test_chain_is_named_no_further_than_needed():
    """CT-1: a walk that ends early computes no digest of what lies behind."""
    chain = make_chain()
    plan_restore(FakeIndex(block_names(2)), chain, TOKENS, 0, LIMIT)

    assert len(chain.blocks) == 3


@pytest.mark.parametrize(
    ("salt", "num_known", "cause"),
    [(0, 0, "no_block"), (5, 0, "salt"), (5, 1, "no_block"), (5, LIMIT, None)],
)
def test_cause_of_a_hole(salt, num_known, cause):
    """KV-9: a domain without its first block has nothing; it is told no more than that."""
    domain = SaltDomain(salt)
    found = plan(FakeIndex(block_names(num_known, domain)), salt=domain)

    assert found.cause == cause


def test_salts_do_not_find_one_another():
    """KV-9: a chain under one salt is no chain under another."""
    index = FakeIndex(block_names(LIMIT, SaltDomain(1)) + block_names(LIMIT))

    assert plan(index, salt=SaltDomain(1)).end == LIMIT
    assert plan(index, salt=SaltDomain(2)).end == 0


def test_policy_reduces_to_the_deepest_backed_boundary():
    """SD-1: state decides; the chain only proposes."""
    index = FakeIndex([*block_names(9), *state_names([2, 6])])
    found = plan(index, policy=POLICY)

    assert (found.first, found.end, found.cause) == (0, 6, "no_sidecar")
    assert [b.num_blocks for b in found.backings] == [6, 2]
    assert [b.name for b in found.backings] == state_names([6, 2])


def test_policy_without_a_sidecar_restores_nothing():
    """SD-1: a chain that no state backs is of no use."""
    found = plan(FakeIndex(block_names(9)), first=2, policy=POLICY)

    assert (found.num_blocks, found.backings, found.cause) == (0, (), "no_sidecar")


def test_policy_keeps_the_cause_of_the_hole():
    """SD-1: state at the chain's own end costs nothing; then the hole is the cause."""
    index = FakeIndex([*block_names(9), *state_names([9])])

    assert (plan(index, policy=POLICY).end, plan(index, policy=POLICY).cause) == (9, "no_block")
    assert plan(index, limit=9, policy=POLICY).cause is None


def test_policy_never_lengthens():
    """SD-1: a sidecar behind the hole, or at what memory holds already, backs nothing."""
    index = FakeIndex([*block_names(5), *state_names([2, 6, 9])])

    assert plan(index, first=2, policy=POLICY).num_blocks == 0


def test_state_of_another_group_backs_nothing():
    """SD-1: a family's state is that of its own group."""
    gdn = SidecarPolicy("gdn_state", POLICY.layout)
    index = FakeIndex([*block_names(5), *state_names([5])])

    assert plan(index, policy=gdn).num_blocks == 0


@given(
    known=st.sets(st.integers(0, LIMIT - 1)),
    on_disk=st.sets(st.integers(0, LIMIT - 1)),
    states=st.sets(st.integers(1, LIMIT)),
    bounds=st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)).map(sorted),
    with_policy=st.booleans(),
)
def test_plan_is_the_longest_backed_run(known, on_disk, states, bounds, with_policy):
    """SD-1, CT-1: the plan is the run of blocks up to the first hole, cut to a boundary."""
    first, limit = bounds
    names = block_names(LIMIT)
    index = FakeIndex(
        [*(names[i] for i in known), *state_names(states)], [names[i] for i in on_disk]
    )
    found = plan(index, first, limit, policy=POLICY if with_policy else None)

    there = known | on_disk
    end = next((i for i in range(first, limit) if i not in there), limit)
    backed = [n for n in range(end, first, -1) if n in states]
    expected = end if not with_policy else next(iter(backed), first)
    assert (found.first, found.end) == (first, expected)
    assert [b.num_blocks for b in found.backings] == (backed if with_policy else [])
    assert (found.cause is None) == (expected == limit)
    missed = {name for name in index.looks if name.group is ColdGroup.KV}
    assert len(missed - {names[i] for i in on_disk}) == (end < limit)


def test_a_sidecar_of_another_process_is_found():
    """SD-1, CT-9: what was written after our scan backs a restore, where it helps most."""
    index = FakeIndex(block_names(5), state_names([2, 4]))

    assert plan(index, policy=POLICY).num_blocks == 4
