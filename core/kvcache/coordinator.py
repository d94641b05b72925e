"""The coordinator: one transaction over all cache groups."""

from __future__ import annotations

from collections import abc

from ..contract.cache_spec import CacheLayout
from ..errors import CacheMisuseError
from ..ids import SHARED_DOMAIN, BlockId, SaltDomain, SequenceId
from .block_allocator import BlockAllocator
from .block_group import GrowPool
from .block_identity import ExtraKeys, PrefixChain
from .block_table import BlockTable, TableChanges
from .capacity import Capacity
from .invariants import check_blocks
from .kinds import Kinds, make_groups
from .no_snapshots import NoSnapshots
from .pending import PendingBlocks
from .prefix import PrefixHit, find_hit
from .sequence import Sequence, SequenceStatus
from .state_keeper import StateKeeper
from .state_manager import LiveStates
from .stats import CacheStats, PrefixCounts


class Coordinator(Capacity):
    """The scheduler's view of the cache. A sequence has one cursor for all groups.

    The operations of a step are `reserve`, `record` (sampled tokens), `commit`, `publish`.
    `rewind` drops reserved positions that are not committed. Each operation is a loop over the
    managers of the kinds. Owned by the engine thread.

    Attributes:
        groups: The attention groups, in the layout's order.
        block_size: Tokens of a block, the same in every group.
        max_slice: Most tokens of one sequence that a step computes.
        kinds: The managers by kind, for captures and restores.
        snapshots: The boundaries at which prefills stop for snapshots of recurrent state.
    """

    def __init__(
        self,
        layout: CacheLayout,
        allocators: abc.Sequence[BlockAllocator],
        grow: GrowPool | None = None,
        keeper: StateKeeper | None = None,
        max_slice: int = 1,
    ) -> None:
        """Make an empty cache.

        Args:
            layout: The model's cache layout.
            allocators: One per group. A layout of recurrent layers alone has one allocator
                without a pool: its blocks count tokens and identify prefixes.
            grow: Enlarges a group's pool; None for pools of fixed size.
            keeper: Keeps snapshots of recurrent states. With None, a model with recurrent
                layers finds no prefix.
            max_slice: Most tokens of one sequence that a step computes.
        """
        super().__init__(make_groups(layout, allocators, grow, max_slice), layout.primary)
        self.block_size = self.groups[0].allocator.block_size
        self.max_slice = max_slice
        self.kinds = Kinds.of(layout, self.groups, self.block_size, keeper)
        self._managers = self.kinds.managers
        self.snapshots = self.kinds.states or NoSnapshots()
        self._sequences: dict[SequenceId, Sequence] = {}
        self._pending = PendingBlocks()
        states = self.kinds.states
        self._awaited = self._pending.awaited if states is None else states.awaited
        self._num_publications = 0
        self._counts = PrefixCounts()

    # -- prefixes --------------------------------------------------------------------------

    @property
    def num_publications(self) -> int:
        """Rises when blocks or snapshots are published, or when awaited ones are given up."""
        return self._num_publications + self.snapshots.num_publications

    def bind_states(self, live: LiveStates) -> None:
        """Set the store of the recurrent states of live sequences."""
        if self.kinds.states is not None:
            self.kinds.states.live = live

    def is_live(self, sequence_id: SequenceId) -> bool:
        """Return whether a sequence with this id is open."""
        return sequence_id in self._sequences

    def open(
        self,
        sequence_id: SequenceId,
        tokens: abc.Sequence[int],
        *,
        salt: SaltDomain = SHARED_DOMAIN,
        extra_keys: abc.Sequence[ExtraKeys] = (),
        owner: str = "",
    ) -> Sequence:
        """Return a new sequence without blocks.

        Args:
            sequence_id: An id that no open sequence has.
            tokens: The prompt, or all known tokens of a preempted request; ids of 32 bits.
            salt: Sharing domain.
            extra_keys: Identity beside the tokens, such as images; one tuple per block.
            owner: The conversation of the request.

        Raises:
            CacheMisuseError: The id is in use, or `tokens` is empty.
        """
        operation = f"open sequence {sequence_id}"
        if sequence_id in self._sequences:
            raise CacheMisuseError(operation, "the sequence is open already")
        if not tokens:
            raise CacheMisuseError(operation, "a sequence needs at least one token")
        sequence = Sequence(
            id=sequence_id,
            tokens=list(tokens),
            chain=PrefixChain(self.block_size, salt, extra_keys),
            tables=tuple(
                BlockTable(self.block_size, group.allocator.null) for group in self.groups
            ),
            num_prompt_blocks=len(tokens) // self.block_size,
            prompt_boundary=(len(tokens) - 1) // self.block_size,
            owner=owner,
        )
        self._sequences[sequence_id] = sequence
        return sequence

    def match_prefix(self, sequence: Sequence) -> PrefixHit:
        """Return the longest prefix that every kind of group can continue from.

        No reference is taken: the hit is valid until the next `reserve` or `purge`. A hit ends
        before the last token, whose logits are wanted. A hit ends where every recurrent layer
        has a snapshot and every window is held.

        Raises:
            CacheMisuseError: The sequence is attached or released.
        """
        sequence.expect(SequenceStatus.NEW, "match a prefix")
        sequence.chain.extend(sequence.tokens, sequence.num_prompt_blocks)
        limit = (len(sequence.tokens) - 1) // self.block_size
        return find_hit(self._managers, len(self.groups), sequence.chain, limit, self._awaited)

    def find_blocks(self, chain: PrefixChain, first: int, count: int) -> list[BlockId]:
        """Return the ids of published blocks `[first, first + count)` of a chain.

        The ids are of the primary group and end before the first unpublished block.
        """
        return self._primary.find_blocks(chain, first, count)

    def attach(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Take references to the hit's blocks and set the cursor to the end of the hit.

        The other full blocks of the prompt become pending: other requests may wait for them.

        Raises:
            CacheMisuseError: The sequence is not new, or the hit is stale or belongs to
                another sequence; nothing was changed.
        """
        sequence.expect(SequenceStatus.NEW, "attach")
        hashes, num_blocks = sequence.chain.hashes, hit.length // self.block_size
        for group, entries in zip(self.groups, hit.blocks, strict=True):
            held = group.real_blocks(entries)
            if [b.hash for b in held] != hashes[len(entries) - len(held) : num_blocks]:
                state = "the hit is stale or belongs to another sequence"
                raise CacheMisuseError(f"attach sequence {sequence.id}", state)
        sequence.start_at(hit.length)
        for manager, found in zip(self._managers, hit.found, strict=True):
            manager.attach(sequence, found)
        self._pending.claim(sequence.id, hashes[num_blocks:])
        self._counts.count(hit.length, hit.unbacked)

    # -- one step --------------------------------------------------------------------------

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
