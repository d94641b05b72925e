"""Which objects of a store can still be restored, by what each is of no use without.

A block needs all blocks before it. Where a family keeps state beside its blocks, a block also
needs such a state, behind itself or behind a later block of its chain; a state needs the block
that it stands behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from ...ids import ColdKey
from ..objects.claims import Link
from ..objects.keys import ROOT, ColdGroup, ObjectName


@attrs.define(eq=False, weakref_slot=False)
class _Node:
    """An object.

    Attributes:
        name: Its name.
        link: What it is of no use without.
        reachable: All blocks before it are there.
        num_uses: Restorable objects right behind it that make it worth a restore.
        restorable: It is reachable and has what it needs.
    """

    name: ObjectName
    link: Link
    reachable: bool = False
    num_uses: int = 0
    restorable: bool = False

    def settle(self) -> bool:
        """Put `restorable` right; return whether it has changed."""
        before = self.restorable
        self.restorable = self.reachable and (self.link.state is None or self.num_uses > 0)
        return self.restorable != before

    def is_used_by(self, other: _Node) -> bool:
        """Return whether an object right behind this one counts among its uses."""
        return other.name.group in (ColdGroup.KV, self.link.state)


class Lineage:
    """The forest of chains, with the states beside them. Pure bookkeeping, no lock.

    Each change costs what it changes: an object more or less moves the bounds of what can be
    restored along its chain, and is looked at no further.

    Attributes:
        lost: Objects that cannot be restored -> whether they could be before. A block of a
            walk under way could not yet: its state is written last.
    """

    def __init__(self) -> None:
        self.lost: dict[ObjectName, bool] = {}
        self._known: set[ObjectName] = set()  # those that stand for themselves, too
        self._nodes: dict[ObjectName, _Node] = {}
        self._blocks: dict[ColdKey, _Node] = {}
        self._behind: dict[ColdKey, list[_Node]] = {}  # of blocks that are absent, too

    def unknown(self, names: Mapping[ObjectName, object]) -> list[ObjectName]:
        """Return those of all objects of which nobody has said what they need."""
        if len(self._known) == len(names):
            return []
        return [name for name in names if name not in self._known]

    def learn(self, name: ObjectName, link: Link | None) -> bool:
        """Take note of what an object needs, once; None for one that stands for itself.

        Returns:
            Whether it has a place among the others from now on.
        """
        is_new = link is not None and name not in self._known
        self._known.add(name)
        if link is not None and is_new:
            self.enter(name, link)
        return is_new

    def enter(self, name: ObjectName, link: Link) -> None:
        """Give an object its place."""
        if name in self._nodes:
            return
        node = self._nodes[name] = _Node(name, link)
        if name.group is ColdGroup.KV:
            self._blocks[name.key] = node
        if link.after != ROOT:
            self._behind.setdefault(link.after, []).append(node)
        self.lost[name] = False
        parent = self._parent(node)
        if link.after == ROOT or (parent is not None and parent.reachable):
            self._reach(node, reachable=True)

    def leave(self, name: ObjectName) -> None:
        """Forget an object; what comes after it cannot be restored from now on."""
        self._known.discard(name)
        node = self._nodes.get(name)
        if node is None:
            return
        self._reach(node, reachable=False)
        siblings = self._behind.get(node.link.after)
        if siblings is not None:
            siblings.remove(node)
            if not siblings:
                del self._behind[node.link.after]
        if name.group is ColdGroup.KV:
            del self._blocks[name.key]
        del self._nodes[name], self.lost[name]

    def renew(self, name: ObjectName) -> None:
        """Take note that a chain is used: its state may be about to be written again."""
        if name in self.lost:
            self.lost[name] = False

    def losses(self, name: ObjectName, spent: dict[ObjectName, int]) -> list[ObjectName]:
        """Return which blocks could not be restored any more without an object.

        Args:
            name: The object.
            spent: Uses of blocks that are given up already; this one's are added.

        Returns:
            The deepest first.
        """
        found: list[ObjectName] = []
        node = self._nodes.get(name)
        while node is not None and node.restorable:
            node = self._parent(node)
            if node is None or node.link.state is None:
                break
            spent[node.name] = spent.get(node.name, 0) + 1
            if spent[node.name] < node.num_uses:
                break
            found.append(node.name)
        return found

    def ancestors(self, name: ObjectName) -> Iterator[ObjectName]:
        """Return the blocks that an object comes after, the nearest first."""
        node = self._nodes.get(name)
        while node is not None and (node := self._parent(node)) is not None:
            yield node.name

    def states(self, name: ObjectName) -> Sequence[ObjectName]:
        """Return the sidecars that stand behind a block."""
        behind = self._behind.get(name.key)
        if behind is None or name.group is not ColdGroup.KV:
            return ()
        return [node.name for node in behind if node.name.group is not ColdGroup.KV]

    def _parent(self, node: _Node) -> _Node | None:
        return self._blocks.get(node.link.after)

    def _children(self, node: _Node) -> Sequence[_Node]:
        return self._behind.get(node.name.key, ()) if node.name.group is ColdGroup.KV else ()

    def _reach(self, node: _Node, *, reachable: bool) -> None:
        """Have an object and all that comes after it be reachable, or not."""
        reached = [node]
        for each in reached:  # grows
            each.reachable = reachable
            reached.extend(c for c in self._children(each) if c.reachable != reachable)
        for each in reversed(reached):
            self._settle(each)

    def _settle(self, node: _Node | None) -> None:
        """Put right what an object is, and what the blocks before it are for it."""
        while node is not None and node.settle():
            if node.restorable:
                del self.lost[node.name]
            else:
                self.lost[node.name] = True
            parent = self._parent(node)
            if parent is not None and parent.is_used_by(node):
                parent.num_uses += 1 if node.restorable else -1
            node = parent

    def check(self) -> None:
        """Verify every equation that must hold; O(objects).

        Raises:
            AssertionError: One is broken; a fault of this module.
        """
        for name, node in self._nodes.items():
            parent = self._parent(node)
            is_first = node.link.after == ROOT
            assert node.reachable == (is_first or bool(parent and parent.reachable))
            uses = [c for c in self._children(node) if c.restorable and node.is_used_by(c)]
            assert node.num_uses == len(uses)
            assert not node.settle(), "nothing waits to be put right"
            assert (name in self.lost) != node.restorable
        assert self.lost.keys() <= self._nodes.keys()
