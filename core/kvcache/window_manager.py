"""The manager of groups with a sliding window."""

from __future__ import annotations

from collections import abc

from ..errors import CacheExhaustedError, CacheMisuseError
from ..ids import BlockHash, BlockId
from .block import Block
from .block_group import BlockGroup
from .block_identity import PrefixChain
from .block_manager import BlockManager
from .block_table import blocks_for
from .manager import Found, find_agreed
from .sequence import Sequence
from .window_pins import WindowPins


class WindowManager(BlockManager):
    """Expires blocks that a window has moved past. Implements `manager.Manager`.

    A window moves with the committed frontier. Pure bookkeeping; owned by the engine thread.

    Attributes:
        pins: The pinned boundaries.
    """

    def __init__(self, groups: abc.Sequence[BlockGroup], row_elements: int) -> None:
        """Make the manager.

        Args:
            groups: All groups with a window.
            row_elements: Elements of one position in all layers of these groups.
        """
        super().__init__(groups)
        self._block_size = groups[0].allocator.block_size
        self._finders = [_WindowFinder(group) for group in groups]
        window = max(group.visible_tokens or 0 for group in groups)
        self.pins = WindowPins(groups, window, row_elements)

    def find(self, chain: PrefixChain, limit: int) -> Found:
        """Return the deepest boundary at which every window is held completely."""
        found = find_agreed(self._finders, chain, limit)
        blocks = {i: entries for answer in found for i, entries in answer.blocks.items()}
        return Found(found[0].num_blocks, blocks)

    def make_room(self, sequence: Sequence, end: int) -> None:
        """Grow pools; if blocks are still missing, expire blocks of the sequence itself."""
        for group in self.groups:
            self._make_room(group, sequence, sequence.tables[group.index].num_missing(end))

    def _make_room(self, group: BlockGroup, sequence: Sequence, count: int) -> None:
        """Make room in one group.

        Steps in flight may still use the blocks that are taken from the sequence. Reuse is
        safe because the device runs submissions in order.
        """
        try:
            group.make_room(count)
        except CacheExhaustedError:
            passed = sequence.tables[group.index].expire(group.first_needed(sequence.cursor))
            if not passed:
                raise
            group.allocator.expire(passed)
            group.make_room(count)

    def make_restore_room(self, sequence: Sequence, end: int) -> None:
        """Make room for the window at `end` only."""
        for group in self.groups:
            group.make_room(self._num_restored(group, sequence, end))

    def reserve_restore(self, sequence: Sequence, end: int) -> None:
        """Allocate blocks for the window at `end`; `install` moves them into the tables."""
        for group in self.groups:
            count = self._num_restored(group, sequence, end)
            sequence.spare[group.index] = group.allocator.allocate(count)

    def _num_restored(self, group: BlockGroup, sequence: Sequence, end: int) -> int:
        table = sequence.tables[group.index]
        return blocks_for(end, self._block_size) - max(group.first_needed(end), len(table))

    def commit(self, sequence: Sequence, first: int) -> None:
        """Pin the boundaries that the sequence has passed, as the rules allow."""
        self.pins.commit(sequence, first)

    def check_rewind(self, sequence: Sequence, end: int) -> None:
        """Refuse a rewind to a position whose window was expired by `make_room`.

        Raises:
            CacheMisuseError: The window of a token at `end` is no longer held.
        """
        for group in self.groups:
            if sequence.tables[group.index].num_expired > group.first_needed(end):
                raise CacheMisuseError(
                    f"rewind to position {end} (sequence {sequence.id})",
                    f"the window of a token at {end} is no longer held",
                )

    def rewind(self, sequence: Sequence) -> None:
        """Free the blocks that a restore reserved and did not use."""
        self._free_spare(sequence)

    def expire(self, sequence: Sequence) -> None:
        """Release the blocks that the window at the frontier has moved past."""
        for group in self.groups:
            table = sequence.tables[group.index]
            group.allocator.expire(table.expire(group.first_needed(sequence.frontier)))

    def release(self, sequence: Sequence) -> None:
        """Drop the references. Blocks of the last window are evicted in the normal order.

        Blocks of the window at the last published boundary may already be expired, if the
        frontier lies behind that boundary. `rescue` moves them back.
        """
        self._free_spare(sequence)
        super().release(sequence)
        for group in self.groups:
            group.allocator.rescue(self._window_hashes(group, sequence))

    def _window_hashes(self, group: BlockGroup, sequence: Sequence) -> abc.Sequence[BlockHash]:
        end = sequence.num_published
        return sequence.chain.hashes[group.first_needed(end * self._block_size) : end]

    def clear(self) -> None:
        """Remove all pins."""
        self.pins.clear()

    def _free_spare(self, sequence: Sequence) -> None:
        for group in self.groups:
            group.allocator.free(sequence.spare.pop(group.index, []))

    # -- sidecars --------------------------------------------------------------------------

    def deepest(self, chain: PrefixChain, limit: int) -> int:
        """Return the deepest boundary at which all windows are held, in blocks; 0: none."""
        return self.find(chain, limit).num_blocks

    def blocks_at(self, chain: PrefixChain, num_blocks: int) -> dict[int, list[BlockId]] | None:
        """Return the published blocks of the windows at a boundary.

        Returns:
            Group index -> block ids; None if a window is not held completely.
        """
        found: dict[int, list[BlockId]] = {}
        for group in self.groups:
            first = group.first_needed(num_blocks * self._block_size)
            found[group.index] = group.find_blocks(chain, first, num_blocks - first)
            if len(found[group.index]) < num_blocks - first:
                return None
        return found

    def install(self, sequence: Sequence, boundary: int) -> dict[int, list[BlockId]]:
        """Set the end of a sequence's windows to a boundary that is being restored.

        Window blocks that were found in memory stay in the tables.

        Args:
            sequence: A sequence with blocks from `Coordinator.reserve_restore`.
            boundary: The boundary in tokens, within the reserved positions.

        Returns:
            Group index -> ids of the blocks that the caller must write: the last blocks
            before the boundary.
        """
        installed: dict[int, list[BlockId]] = {}
        for group in self.groups:
            table, spare = sequence.tables[group.index], sequence.spare[group.index]
            first, end = group.first_needed(boundary), boundary // self._block_size
            group.allocator.expire(table.expire(first))
            if len(table) < first:
                table.extend_null(first - len(table))
            blocks = spare[: end - len(table)]
            del spare[: len(blocks)]
            table.extend(blocks)
            installed[group.index] = [block.id for block in blocks]
        self._free_spare(sequence)
        return installed


class _WindowFinder:
    """Finds prefixes at whose end one group holds the complete window."""

    def __init__(self, group: BlockGroup) -> None:
        self._group = group

    def find(self, chain: PrefixChain, limit: int) -> Found:
        """Return the deepest boundary whose window is held; entries before it are null."""
        group, boundary, held = self._group, limit, list[Block]()
        size = group.allocator.block_size
        for first in range(limit, 0, -1):
            if first <= group.first_needed(boundary * size):
                nulls = [group.allocator.null] * first
                return Found(boundary, {group.index: nulls + held[::-1]})
            block = group.lookup(chain, first - 1)
            if block is None:
                boundary, held = first - 1, []
            else:
                held.append(block)
        return Found(boundary, {group.index: held[::-1]})
