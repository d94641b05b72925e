"""Pins on the window blocks of boundaries that are worth keeping."""

from __future__ import annotations

from collections import abc

from ..ids import BlockHash
from .block_group import BlockGroup
from .block_identity import PrefixChain
from .sequence import Sequence
from .snapshots import Snapshot, Snapshots
from .window_retention import (
    ELEMENT_BYTES,
    WindowRules,
    choose_window_victim,
    rules_with_anchors,
    window_bytes,
)


class WindowPins:
    """Pins window blocks at boundaries where later prompts may diverge.

    A pin does not prevent eviction, so `WindowManager.find` asks the prefix table and never
    `snapshots`.

    Attributes:
        snapshots: The pinned boundaries.
        rules: Limits on pinned boundaries.
    """

    def __init__(
        self, groups: abc.Sequence[BlockGroup], window: int, row_elements: int
    ) -> None:
        """Make an empty set of pins.

        Args:
            groups: All groups with a window.
            window: Positions of the longest window.
            row_elements: Elements of one position in all layers of these groups.
        """
        self.snapshots = Snapshots()
        self.rules = WindowRules()
        self._groups = groups
        self._window = window
        self._row_bytes = row_elements * ELEMENT_BYTES
        self._block_size = groups[0].allocator.block_size
        # one boundary per window length, in blocks
        self._cadence = -(-max(window, self._block_size) // self._block_size)

    def want_anchors(self, anchors: abc.Sequence[int]) -> None:
        """Pin anchors too, for a cold tier.

        Args:
            anchors: Boundaries in blocks, ascending.
        """
        boundaries = [anchor * self._block_size for anchor in anchors]
        self.rules = rules_with_anchors(boundaries, self._window, self._row_bytes)

    def boundaries(self, first: int, end: int) -> list[int]:
        """Return the boundaries in `(first, end]` that every request pins, in blocks."""
        cadence, size = self._cadence, self._block_size
        regular = set(range((first // cadence + 1) * cadence, end + 1, cadence))
        anchors = {anchor // size for anchor in self.rules.anchors}
        return sorted(regular | {anchor for anchor in anchors if first < anchor <= end})

    def commit(self, sequence: Sequence, first: int) -> None:
        """Pin the boundaries in `(first, num_published]` of a sequence, in blocks."""
        passed = set(self.boundaries(first, sequence.num_published))
        if first < sequence.prompt_boundary <= sequence.num_published:
            passed.add(sequence.prompt_boundary)
        for boundary in sorted(passed):
            if self._holds(sequence, boundary):
                prompt = boundary == sequence.prompt_boundary
                self.keep(sequence.owner, sequence.chain, boundary, prompt=prompt)

    def _holds(self, sequence: Sequence, num_blocks: int) -> bool:
        """Return whether a sequence holds the windows at a boundary; restores skip some."""
        return all(
            sequence.tables[group.index].num_expired
            <= group.first_needed(num_blocks * self._block_size)
            for group in self._groups
        )

    def keep(
        self, owner: str, chain: PrefixChain, num_blocks: int, *, prompt: bool = False
    ) -> None:
        """Pin the window at a boundary of a chain. The window's blocks must be published.

        Args:
            owner: The conversation of the request.
            chain: The chain.
            num_blocks: The boundary in blocks.
            prompt: Whether the boundary is the end of a prompt. A retry begins there, and so
                does the next turn if its history words the answer differently. The newest
                prompt boundaries, up to half of the limit, are protected.
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

    def clear(self) -> None:
        """Remove all pins."""
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
        self, group: BlockGroup, chain: abc.Sequence[BlockHash], num_blocks: int
    ) -> abc.Sequence[BlockHash]:
        """Return the hashes of the window's blocks at a boundary."""
        return chain[group.first_needed(num_blocks * self._block_size) : num_blocks]
