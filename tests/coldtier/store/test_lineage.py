from __future__ import annotations

import hashlib
import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from neve.coldtier.objects.claims import Link
from neve.coldtier.objects.keys import ROOT, ColdGroup, ObjectName
from neve.coldtier.store.lineage import Lineage
from neve.ids import ColdKey

Path_ = tuple[int, ...]

STATE = ColdGroup.CONV_STATE
paths = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)


def key_of(path: Path_) -> ColdKey:
    return ColdKey(hashlib.sha256(repr(path).encode()).digest()) if path else ROOT


def block_of(path: Path_) -> ObjectName:
    return ObjectName(key_of(path))


def state_of(path: Path_, group: ColdGroup = STATE) -> ObjectName:
    return ObjectName(key_of((*path, 9)), group)


class LineageMachine(RuleBasedStateMachine):
    """KV-4: what can be restored, told object by object, is what the definition says.

    Chains that begin with 0 need states, those that begin with 1 do not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: set[Path_] = set()
        self.states: set[Path_] = set()
        self.real = Lineage()

    @rule(path=paths)
    def add_block(self, path: Path_) -> None:
        state = STATE if path[0] == 0 else None
        self.real.enter(block_of(path), Link(key_of(path[:-1]), state))
        self.blocks.add(path)

    @rule(path=paths)
    def add_chain(self, path: Path_) -> None:
        for end in range(1, len(path) + 1):
            self.add_block(path[:end])
        self.add_state(path)

    @rule(path=paths)
    def add_state(self, path: Path_) -> None:
        self.real.enter(state_of(path), Link(key_of(path)))
        self.states.add(path)

    @rule(path=paths)
    def remove_block(self, path: Path_) -> None:
        self.real.leave(block_of(path))
        self.blocks.discard(path)

    @rule(path=paths)
    def remove_state(self, path: Path_) -> None:
        self.real.leave(state_of(path))
        self.states.discard(path)

    @rule(path=paths)
    def ask(self, path: Path_) -> None:
        before = self.restorable()
        losses = self.real.losses(state_of(path), {})
        without = self.restorable(self.states - {path})
        assert set(losses) == {n for n in before - without if n.group is ColdGroup.KV}

    def reaches(self, path: Path_) -> bool:
        return all(path[:end] in self.blocks for end in range(1, len(path) + 1))

    def restorable(self, states: set[Path_] | None = None) -> set[ObjectName]:
        backed = {p for p in (self.states if states is None else states) if self.reaches(p)}
        found = {state_of(path) for path in backed}
        for path in self.blocks:
            needed = path[0] == 1 or any(s[: len(path)] == path for s in backed)
            if needed and self.reaches(path):
                found.add(block_of(path))
        return found

    @invariant()
    def agrees(self) -> None:
        self.real.check()
        held = {block_of(p) for p in self.blocks} | {state_of(p) for p in self.states}
        assert self.real.lost.keys() == held - self.restorable()


LineageMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
test_what_can_be_restored = LineageMachine.TestCase


def test_a_state_of_another_kind_backs_nothing() -> None:
    """KV-4: a block of convolutions is not kept by a window that stands behind it."""
    lineage = Lineage()
    lineage.enter(block_of((0,)), Link(ROOT, STATE))
    lineage.enter(state_of((0,), ColdGroup.SLIDING_WINDOW), Link(key_of((0,))))

    assert block_of((0,)) in lineage.lost


def test_a_long_chain_is_no_recursion() -> None:
    """KV-4: tens of thousands of blocks are lost and found again at once."""
    lineage = Lineage()
    path = (0,) * 3
    keys = [ROOT, *(key_of((*path, i)) for i in range(20_000))]
    for after, key in itertools.pairwise(keys):
        lineage.enter(ObjectName(key), Link(after, STATE))
    lineage.enter(state_of(path), Link(keys[-1]))
    assert not lineage.lost

    lineage.leave(ObjectName(keys[1]))
    assert len(lineage.lost) == 20_000
    lineage.enter(ObjectName(keys[1]), Link(ROOT, STATE))
    assert not lineage.lost
