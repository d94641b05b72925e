"""Groups whose layers see a window: what they hold, and where one can go on from."""

from __future__ import annotations

from collections import abc

from ..contract.cache_spec import CacheLayout
from ..contract.layer_spec import SlidingWindow
from ..ids import BlockHash, BlockId
from .block_identity import PrefixChain
from .group_manager import GroupManager
from .prefix import find_longest_prefix
from .sequence import Sequence
from .snapshots import Snapshot, Snapshots
from .window_retention import (
    ELEMENT_BYTES,
    WindowRules,
    choose_window_victim,
    rules_with_anchors,
    window_bytes,
)


class WindowKeeper:
    """Moves windows on, and pins their blocks at boundaries that are worth it.

    An entry of `snapshots` is a wish: whether a boundary can be gone on from is decided by
    the blocks that are there, and never by an entry. Pure bookkeeping; owned by the engine
    thread.

    Attributes:
        snapshots: Boundaries that are held on to.
        rules: Which, and how many.
    """

    def __init__(
        self, groups: abc.Sequence[GroupManager], window: int, row_elements: int
    ) -> None:
        """Keep nothing yet.

        Args:
            groups: All groups with a window.
            window: Positions of the longest window.
            row_elements: Of one position in all their layers.
        """
        self.snapshots = Snapshots()
        self.rules = WindowRules()
        self._groups = groups
        self._window = window
        self._row_bytes = row_elements * ELEMENT_BYTES
        self._block_size = groups[0].allocator.block_size
        # a boundary every window, however long the request
        self._cadence = -(-max(window, self._block_size) // self._block_size)

    @classmethod
    def of(cls, layout: CacheLayout, groups: abc.Sequence[GroupManager]) -> WindowKeeper | None:
        """Return the keeper of a layout; None if none of its layers has a window."""
        specs = {i: s for i, s in enumerate(layout.groups) if isinstance(s, SlidingWindow)}
        if not specs:
            return None
        elements = sum(
            layout.num_group_layers(i) * spec.token_elements() for i, spec in specs.items()
        )
        longest = max(spec.window for spec in specs.values())
        return cls([groups[i] for i in specs], longest, elements)

    # -- boundaries that are held on to ----------------------------------------------------

    def want_anchors(self, anchors: abc.Sequence[int]) -> None:
        """Hold on to anchors too, for a cold tier.

        Args:
            anchors: Boundaries in blocks, ascending.
        """
        boundaries = [anchor * self._block_size for anchor in anchors]
        self.rules = rules_with_anchors(boundaries, self._window, self._row_bytes)

    def boundaries(self, first: int, end: int) -> list[int]:
        """Return the boundaries in `(first, end]` that every request publishes, in blocks."""
        cadence, size = self._cadence, self._block_size
        regular = set(range((first // cadence + 1) * cadence, end + 1, cadence))
        anchors = {anchor // size for anchor in self.rules.anchors}
        return sorted(regular | {anchor for anchor in anchors if first < anchor <= end})

    def move(self, sequence: Sequence, first: int) -> None:
        """Let a sequence's windows end at its frontier.

        Boundaries passed since it had published `first` blocks are held on to where they are
        worth it; blocks that the windows have moved past are given back.
        """
        passed = set(self.boundaries(first, sequence.num_published))
        if first < sequence.prompt_boundary <= sequence.num_published:
            passed.add(sequence.prompt_boundary)
        for boundary in sorted(passed):
            if self._holds(sequence, boundary):
                prompt = boundary == sequence.prompt_boundary
                self.keep(sequence.owner, sequence.chain, boundary, prompt=prompt)
        for group in self._groups:
            table = sequence.tables[group.index]
            group.allocator.expire(table.expire(group.first_needed(sequence.frontier)))

    def _holds(self, sequence: Sequence, num_blocks: int) -> bool:
        """Return whether a sequence has the windows at a boundary; restores jump over some."""
        return all(
            sequence.tables[group.index].num_expired
            <= group.first_needed(num_blocks * self._block_size)
            for group in self._groups
        )

    def keep(
        self, owner: str, chain: PrefixChain, num_blocks: int, *, prompt: bool = False
    ) -> None:
        """Hold on to the window at a boundary of a chain whose blocks there are published.

        Args:
            owner: Whose request passed it.
            chain: The chain.
            num_blocks: The boundary.
            prompt: It is the end of a prompt, where a retry begins, and the next turn if that
                tells the answer in other words. The newest of them, half of all boundaries,
                are protected.
        """
        boundary = num_blocks * self._block_size
        entry = Snapshot(
            owner=owner,
            chain=chain.hashes,
            num_blocks=num_blocks,
            boundary=boundary,
            num_bytes=window_bytes(boundary, self._window, self._row_bytes),
            protected=prompt,
        )
        self._pin(entry)
        known = self.snapshots.get(entry.hash)
        if known is not None:
            self._drop(known)
        self.snapshots.put(entry)
        self._prune()

    def _prune(self) -> None:
        prompts = [entry for entry in self.snapshots.entries if entry.protected]
        for entry in prompts[: -(self.rules.max_snapshots // 2)]:
            self.snapshots.expose(entry)
        while victim := choose_window_victim(self.snapshots.entries, self.rules):
            self._drop(victim)

    def touch(self, sequence: Sequence) -> None:
        """Have the window at a sequence's end evicted like other cached blocks, not first.

        Its first block may be one that the window has moved past within its last block.
        """
        for group in self._groups:
            hashes = self._hashes(group, sequence.chain.hashes, sequence.num_published)
            group.allocator.rescue(hashes)

    def clear(self) -> None:
        """Hold on to nothing."""
        for entry in self.snapshots.entries:
            self._drop(entry)

    def _drop(self, entry: Snapshot) -> None:
        self.snapshots.drop(entry)
        for group in self._groups:
            group.allocator.unpin(self._hashes(group, entry.chain, entry.num_blocks))

    def _pin(self, entry: Snapshot) -> None:
        for group in self._groups:
            group.allocator.pin(self._hashes(group, entry.chain, entry.num_blocks))

    def _hashes(
        self, group: GroupManager, chain: abc.Sequence[BlockHash], num_blocks: int
    ) -> abc.Sequence[BlockHash]:
        """Return the blocks of the window at a boundary."""
        return chain[group.first_needed(num_blocks * self._block_size) : num_blocks]

    # -- boundaries that can be gone on from -----------------------------------------------

    def deepest(self, chain: PrefixChain, limit: int) -> int:
        """Return how many of the first `limit` blocks end where all windows are held; or 0."""
        return len(find_longest_prefix(self._groups, chain, limit)[0])

    def find(self, chain: PrefixChain, num_blocks: int) -> dict[int, list[BlockId]] | None:
        """Return the published blocks of the windows at a boundary; changes nothing.

        Returns:
            Group -> ids; None if a window is not held as a whole any more.
        """
        found: dict[int, list[BlockId]] = {}
        for group in self._groups:
            first = group.first_needed(num_blocks * self._block_size)
            found[group.index] = group.find_blocks(chain, first, num_blocks - first)
            if len(found[group.index]) < num_blocks - first:
                return None
        return found

    def install(self, sequence: Sequence, boundary: int) -> dict[int, list[BlockId]]:
        """Let the windows of a sequence end at a boundary that is being restored.

        Blocks of the window that memory had stay as they are.

        Args:
            sequence: It holds blocks from `Coordinator.reserve_restore`.
            boundary: Where, in tokens, at most as far as was reserved.

        Returns:
            Group -> the blocks whose content has to be written, the last ones before the
            boundary.
        """
        installed: dict[int, list[BlockId]] = {}
        for group in self._groups:
            table, spare = sequence.tables[group.index], sequence.spare[group.index]
            first, end = group.first_needed(boundary), boundary // self._block_size
            group.allocator.expire(table.expire(first))
            if len(table) < first:
                table.extend_null(first - len(table))
            blocks = spare[: end - len(table)]
            del spare[: len(blocks)]
            table.extend(blocks)
            installed[group.index] = [block.id for block in blocks]
        give_spare_back(self._groups, sequence)
        return installed


def give_spare_back(groups: abc.Sequence[GroupManager], sequence: Sequence) -> None:
    """Free what a restore held for a sequence's windows and did not use."""
    spare, sequence.spare = sequence.spare, ()
    for group in groups if spare else ():
        group.allocator.free(spare[group.index])
