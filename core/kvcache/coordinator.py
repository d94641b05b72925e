"""The coordinator: one transaction over all cache groups."""

from __future__ import annotations

from collections import abc

from ..errors import CacheMisuseError
from .block_table import TableChanges
from .invariants import check_blocks
from .prefix_cache import PrefixCache
from .sequence import Sequence, SequenceStatus
from .stats import CacheStats


class Coordinator(PrefixCache):
    """The scheduler's view of the cache. A sequence has one cursor for all groups.

    The operations of a step are `reserve`, `record` (sampled tokens), `commit`, `publish`.
    `rewind` drops reserved positions that are not committed. Each operation is a loop over the
    managers of the kinds. Owned by the engine thread.
    """

    def reserve(self, sequence: Sequence, n: int) -> None:
        """Back the next `n` positions with blocks in every group, and move the cursor.

        A group that is short of blocks grows, then evicts. All groups make room before any
        group hands out a block, so the reservation succeeds in all groups or in none.

        Raises:
            CacheExhaustedError: A group has too few blocks. Nothing was changed, except that
                pools may have grown and blocks that a window has moved past may be expired.
            CacheMisuseError: The sequence is not attached, or `n` is negative.
        """
        sequence.expect(SequenceStatus.ATTACHED, "reserve")
        if n < 0:
            raise CacheMisuseError(f"reserve {n} positions", "a count is not negative")
        end = sequence.cursor + n
        if any(table.num_missing(end) for table in sequence.tables):
            for manager in self._managers:
                manager.make_room(sequence, end)
            for manager in self._managers:
                manager.reserve(sequence, end)
        sequence.advance(n)

    def reserve_restore(self, sequence: Sequence, n: int) -> None:
        """Back the next `n` positions with blocks that a restore will fill.

        Groups with a window get blocks for the last window only. These blocks stay in
        `Sequence.spare` until `WindowManager.install` sets the end of the window.

        Raises:
            CacheExhaustedError: As `reserve`.
            CacheMisuseError: The sequence is not attached.
        """
        sequence.expect(SequenceStatus.ATTACHED, "reserve")
        end = sequence.cursor + n
        for manager in self._managers:
            manager.make_restore_room(sequence, end)
        for manager in self._managers:
            manager.reserve_restore(sequence, end)
        sequence.advance(n)

    def record(self, sequence: Sequence, tokens: abc.Sequence[int]) -> None:
        """Append known tokens; see `Sequence.record`."""
        sequence.record(tokens)

    def commit(self, sequence: Sequence, n: int) -> None:
        """Move the frontier by `n` positions that every group has computed."""
        sequence.commit(n)

    def rewind(self, sequence: Sequence, n: int) -> None:
        """Move the cursor back by `n`, to the frontier at most; pages are not erased.

        Blocks stay in their tables. A recurrent state returns to the state that the last step
        kept for the new cursor.

        Raises:
            CacheMisuseError: As `Sequence.rewind`, or a window at the new cursor is no longer
                held; nothing was changed.
        """
        for manager in self._managers:
            manager.check_rewind(sequence, sequence.cursor - n)
        sequence.rewind(n)
        for manager in self._managers:
            manager.rewind(sequence)

    def publish(self, sequence: Sequence) -> int:
        """Publish the full blocks below the frontier in all groups, in order.

        Then blocks that a window has moved past are released. A block that another sequence
        published first counts as published, and the sequence keeps its own block. A block
        whose hash belongs to other content ends the published chain.

        Returns:
            The number of newly published blocks of the sequence.

        Raises:
            CacheMisuseError: The sequence is not attached.
        """
        sequence.expect_usable("publish")
        first, end = sequence.num_published, sequence.frontier // self.block_size
        if first < end:
            self._publish_blocks(sequence, first, end)
        for manager in self._managers:
            manager.commit(sequence, first)
            manager.expire(sequence)
        return sequence.num_published - first

    def _publish_blocks(self, sequence: Sequence, first: int, end: int) -> None:
        sequence.chain.extend(sequence.tokens, end)
        while sequence.num_published < end and all(
            manager.publish(sequence, sequence.num_published) for manager in self._managers
        ):
            sequence.num_published += 1
        # a chain that ended early never gets these blocks, so requests must not wait for them
        settled = end if sequence.num_published == end else None
        self._pending.withdraw(sequence.id, sequence.chain.hashes[first:settled])
        self._num_publications += 1

    def take_table_changes(self, sequence: Sequence) -> tuple[TableChanges, ...]:
        """Return the table changes of a sequence since the last call, one tuple per group."""
        return tuple(table.take_changes() for table in sequence.tables)

    # -- release and figures ---------------------------------------------------------------

    def release(self, sequence: Sequence) -> None:
        """Drop all references and end the sequence.

        When no attached sequence is left, groups may grow again after a refusal. A waiting
        request is then admitted and tries to grow the pools.

        Raises:
            CacheMisuseError: The sequence was released before.
        """
        sequence.move(SequenceStatus.RELEASED)
        for manager in self._managers:
            manager.release(sequence)
        unpublished = sequence.chain.hashes[sequence.num_published :]
        self._num_publications += self._pending.withdraw(sequence.id, unpublished)
        del self._sequences[sequence.id]
        if not any(s.status is SequenceStatus.ATTACHED for s in self._sequences.values()):
            for group in self.groups:
                group.forget_refusal()

    def purge(self) -> None:
        """Unpublish all blocks and drop all snapshots; live sequences continue."""
        for manager in self._managers:
            manager.clear()
        for group in self.groups:
            group.allocator.purge()

    def stats(self) -> CacheStats:
        """Return the present figures."""
        return CacheStats(
            tuple(group.stats() for group in self.groups),
            *self._counts.figures(),
            snapshot_bytes=self.snapshots.num_bytes,
            snapshot_refusals=self.snapshots.num_refused,
        )

    def check(self) -> None:
        """Verify all invariants; O(blocks).

        Raises:
            AssertionError: An invariant is broken, by a fault of this room.
        """
        check_blocks(self.groups, list(self._sequences.values()))
        assert self._pending.owners <= self._sequences.keys(), "only live sequences are awaited"
