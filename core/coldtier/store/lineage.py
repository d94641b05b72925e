"""The dependencies among a store's objects, and which objects can still be restored.

A block needs all blocks before it. Where a family has sidecars, a block also needs a sidecar
at its own end or at the end of a later block of its chain. A sidecar needs the block at whose
end it was taken.
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
        name: The object's name.
        link: Objects that the object needs.
        reachable: All blocks before the object exist.
        num_uses: Restorable objects right behind the block that make it worth a restore.
        restorable: The object is reachable and has the objects that it needs.
    """

    name: ObjectName
    link: Link
    reachable: bool = False
    num_uses: int = 0
    restorable: bool = False

    def settle(self) -> bool:
        """Recompute `restorable`; return whether the value has changed."""
        before = self.restorable
        self.restorable = self.reachable and (self.link.state is None or self.num_uses > 0)
        return self.restorable != before

    def is_used_by(self, other: _Node) -> bool:
        """Return whether an object right behind this block counts among its uses."""
        return other.name.group in (ColdGroup.KV, self.link.state)


class Lineage:
    """The forest of chains with their sidecars. Pure bookkeeping, without a lock.

    A change costs as much as it changes: a new or removed object only affects the objects of
    its chain whose `restorable` changes.

    Attributes:
        lost: Objects that cannot be restored -> whether they could be before. A block of a
            running walk could not be restored yet: the walk writes its sidecar last.
    """

    def __init__(self) -> None:
        self.lost: dict[ObjectName, bool] = {}
        self._known: set[ObjectName] = set()  # including objects without a link
        self._nodes: dict[ObjectName, _Node] = {}
        self._blocks: dict[ColdKey, _Node] = {}
        self._behind: dict[ColdKey, list[_Node]] = {}  # by block, absent blocks included

    def unknown(self, names: Mapping[ObjectName, object]) -> list[ObjectName]:
        """Return the objects whose links are not known yet."""
        if len(self._known) == len(names):
            return []
        return [name for name in names if name not in self._known]

    def learn(self, name: ObjectName, link: Link | None) -> bool:
        """Record an object's link, once; None for an object without a link.

        Returns:
            Whether the link is new.
        """
        is_new = link is not None and name not in self._known
        self._known.add(name)
        if link is not None and is_new:
            self.enter(name, link)
        return is_new

    def enter(self, name: ObjectName, link: Link) -> None:
        """Add an object to the forest."""
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
        """Remove an object; objects that depend on it become unrestorable."""
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
        """Record a use of a chain: its sidecar may be about to be written again."""
        if name in self.lost:
            self.lost[name] = False

    def losses(self, name: ObjectName, spent: dict[ObjectName, int]) -> list[ObjectName]:
        """Return the blocks that could not be restored any more without an object.

        Args:
            name: The object.
            spent: Uses of each block that are already given up; updated by the call.

        Returns:
            Blocks, the deepest first.
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
        """Return the blocks before an object, the nearest first."""
        node = self._nodes.get(name)
        while node is not None and (node := self._parent(node)) is not None:
            yield node.name

    def states(self, name: ObjectName) -> Sequence[ObjectName]:
        """Return the sidecars at the end of a block."""
        behind = self._behind.get(name.key)
        if behind is None or name.group is not ColdGroup.KV:
            return ()
        return [node.name for node in behind if node.name.group is not ColdGroup.KV]

    def _parent(self, node: _Node) -> _Node | None:
        return self._blocks.get(node.link.after)

    def _children(self, node: _Node) -> Sequence[_Node]:
        return self._behind.get(node.name.key, ()) if node.name.group is ColdGroup.KV else ()

    def _reach(self, node: _Node, *, reachable: bool) -> None:
        """Set `reachable` for an object and all objects behind it."""
        reached = [node]
        for each in reached:  # grows
            each.reachable = reachable
            reached.extend(c for c in self._children(each) if c.reachable != reachable)
        for each in reversed(reached):
            self._settle(each)

    def _settle(self, node: _Node | None) -> None:
        """Recompute `restorable` of an object, then the uses of the blocks before it."""
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
            AssertionError: An equation is broken: a fault of this module.
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
