"""All groups as one transaction."""

from __future__ import annotations

from collections import abc
from typing import Any

from ..contract.cache_spec import CacheLayout
from ..errors import CacheExhaustedError, CacheMisuseError
from ..ids import SHARED_DOMAIN, BlockId, SaltDomain, SequenceId
from .admission import admits, num_lacking
from .block import Block
from .block_allocator import BlockAllocator
from .block_identity import ExtraKeys, PrefixChain
from .block_table import BlockTable, blocks_for
from .group_manager import GroupManager, GrowPool
from .invariants import check_blocks
from .memory import Resident
from .pending import PendingBlocks
from .prefix import PrefixHit, StateBoundaries, find_longest_prefix
from .sequence import Sequence, SequenceStatus
from .state_keeper import KeptState
from .stats import CacheStats
from .window_keeper import WindowKeeper, give_spare_back

UNBOUNDED_TOKENS = 2**31 - 1
"""More than any context."""


class Coordinator:
    """The cache as the scheduler sees it: sequences, each at one cursor in all groups.

    A step is `reserve`, compute, `commit`, `record` what was sampled, `publish`. Owned by the
    engine thread.

    Attributes:
        groups: One manager a group.
        block_size: Tokens of a block, the same in every group.
        windows: Where windows can be gone on from; None if no layer has one.
    """

    def __init__(
        self,
        layout: CacheLayout,
        allocators: abc.Sequence[BlockAllocator],
        grow: GrowPool | None = None,
        boundaries: StateBoundaries | None = None,
        max_slice: int = 1,
    ) -> None:
        """Make an empty cache.

        Args:
            layout: The model's cache layout.
            allocators: One a group. A layout of recurrent layers alone has one allocator too,
                with no pool behind it: its blocks count tokens and name prefixes.
            grow: Enlarges a group's pool.
            boundaries: Where states of recurrent layers are kept; None means nowhere, so
                that no prefix is ever hit if there are such layers.
            max_slice: Tokens of one sequence that a step computes, at most.
        """
        sizes = {allocator.block_size for allocator in allocators}
        if len(allocators) != max(1, len(layout.groups)) or len(sizes) != 1:
            raise ValueError(
                f"{len(layout.groups)} groups need one allocator each (without a group there "
                "is one) and one block size, "
                f"got {len(allocators)} allocators with block sizes {sorted(sizes)}"
            )
        self.block_size = sizes.pop()
        if self.block_size % layout.block_size_multiple:
            raise ValueError(
                f"the block size must be a multiple of {layout.block_size_multiple}, "
                f"got {self.block_size}"
            )
        specs = layout.groups or (None,)
        self.groups = tuple(
            GroupManager(
                index,
                allocator,
                grow,
                spec,
                Resident.of(spec, self.block_size, max_slice),
            )
            for index, (allocator, spec) in enumerate(zip(allocators, specs, strict=True))
        )
        self.windows = WindowKeeper.of(layout, self.groups)
        self._primary = self.groups[layout.primary]
        self._counted = [g for g in self.groups if not g.is_window] or self.groups
        self._recurrent = bool(layout.states)
        self._boundaries = boundaries
        self._sequences: dict[SequenceId, Sequence] = {}
        self._pending = PendingBlocks()
        self._promised = PendingBlocks()
        self._num_publications = 0
        self._prefix_lookups = 0
        self._prefix_hit_tokens = 0
        self._prefix_unbacked_tokens = 0

    @property
    def max_usable_blocks(self) -> int:
        """Blocks that sequences may ever hold together, growth included.

        Of each group that keeps every block, if there is one.
        """
        return min(group.max_usable_blocks for group in self._counted)

    @property
    def max_tokens(self) -> int:
        """The longest sequence that every group's pool holds, growth included."""
        bounds = [group.max_tokens for group in self.groups]
        return min((b for b in bounds if b is not None), default=UNBOUNDED_TOKENS)

    @property
    def max_concurrent_sequences(self) -> int:
        """Sequences that can hold a first block each in every group, growth included."""
        return min(group.max_usable_blocks for group in self.groups)

    @property
    def num_available(self) -> int:
        """Blocks that each of these groups could hand out: free, evictable or growable."""
        return min(group.num_available for group in self._counted)

    @property
    def num_publications(self) -> int:
        """Rises whenever a prefix becomes longer for somebody, or stops being awaited."""
        return self._num_publications

    def is_live(self, sequence_id: SequenceId) -> bool:
        """Return whether a sequence of that id is open."""
        return sequence_id in self._sequences

    def num_reserved(self, wanted: abc.Iterable[tuple[Sequence, int]]) -> int:
        """Return the blocks of the primary group that sequences lack for so many tokens."""
        return num_lacking(self._primary, wanted)

    def admits(
        self,
        hit: PrefixHit,
        num_tokens: int,
        wanted: abc.Iterable[tuple[Sequence, int]],
        watermark: float,
    ) -> bool:
        """Return whether there is room for one more sequence; see `admission.admits`."""
        return admits(self.groups, hit, num_tokens, list(wanted), watermark)

    def open(
        self,
        sequence_id: SequenceId,
        tokens: abc.Sequence[int],
        *,
        salt: SaltDomain = SHARED_DOMAIN,
        extra_keys: abc.Sequence[ExtraKeys] = (),
        owner: str = "",
    ) -> Sequence:
        """Return a new sequence that holds nothing yet.

        Args:
            sequence_id: Free again after `release`, e.g. for the rest of a preempted request.
            tokens: The prompt, or all that is known of a preempted request; ids of 32 bits.
            salt: Sharing domain.
            extra_keys: What besides tokens decides a block, one tuple a block.
            owner: The conversation that it belongs to.

        Raises:
            CacheMisuseError: The id is in use, or there is no token.
        """
        operation = f"open sequence {sequence_id}"
        if sequence_id in self._sequences:
            raise CacheMisuseError(operation, "it is open already")
        if not tokens:
            raise CacheMisuseError(operation, "it has no token, and needs one at least")
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
        """Return the longest prefix that every group still holds.

        Changes nothing and takes no reference: the hit is valid until the next `reserve` or
        `purge`. At most all tokens but the last one are hit, since that has to yield logits.
        With recurrent layers it ends at a boundary whose state is kept: keys and values
        without the state at just their end are of no use. With windows it ends where the
        whole of each window is held.

        Raises:
            CacheMisuseError: The sequence is attached or released.
        """
        sequence.expect(SequenceStatus.NEW, "match a prefix")
        size, chain = self.block_size, sequence.chain
        chain.extend(sequence.tokens, sequence.num_prompt_blocks)
        limit = (len(sequence.tokens) - 1) // size
        blocks = self._longest_prefix(chain, limit)
        held = len(blocks[0])
        unbacked = len(self._primary.find_prefix(chain, limit)) - held
        if self._recurrent:
            awaited = self._promised_boundary(chain, held, limit)
        else:
            awaited = held
            while awaited < limit and chain.hashes[awaited] in self._pending:
                awaited += 1
        state = self._state_at(chain, held)
        return PrefixHit(held * size, blocks, awaited * size, state, unbacked * size)

    def _longest_prefix(self, chain: PrefixChain, limit: int) -> tuple[list[Block], ...]:
        """Return, per group, the blocks of the longest prefix that can be gone on from."""
        while True:
            blocks = find_longest_prefix(self.groups, chain, limit)
            held = len(blocks[0])
            limit = self._deepest_boundary(chain, held) if self._recurrent else held
            if limit == held:
                return blocks

    def _deepest_boundary(self, chain: PrefixChain, num_blocks: int) -> int:
        """Return how many of the first `num_blocks` blocks may be hit, a state at their end."""
        if self._boundaries is None:
            return 0
        return self._boundaries.deepest_boundary(chain.hashes[:num_blocks])

    def _promised_boundary(self, chain: PrefixChain, held: int, limit: int) -> int:
        """Return the deepest boundary, in blocks, whose state somebody is about to keep."""
        for num_blocks in range(limit if len(self._promised) else held, held, -1):
            if chain.hashes[num_blocks - 1] in self._promised:
                return num_blocks
        return held

    def promise(self, sequence: Sequence, rungs: abc.Sequence[int]) -> None:
        """Announce the boundaries at which a sequence's prefill will stop for a snapshot."""
        hashes = sequence.chain.hashes
        promised = [hashes[rung // self.block_size - 1] for rung in rungs]
        self._promised.claim(sequence.id, promised)

    def shared_prefix(self, one: Sequence, other: Sequence) -> int:
        """Return the tokens of the whole blocks with which two prompts begin alike.

        At most all tokens but the last one of either; 0 if no layer is recurrent, since then
        nobody has to stop for what is shared.
        """
        if not self._recurrent or self._boundaries is None:
            return 0
        size, shared = self.block_size, 0
        for sequence in (one, other):
            sequence.chain.extend(sequence.tokens, sequence.num_prompt_blocks)
        limit = min((len(s.tokens) - 1) // size for s in (one, other))
        while shared < limit and one.chain.hashes[shared] == other.chain.hashes[shared]:
            shared += 1
        return shared * size

    def _state_at(self, chain: PrefixChain, num_blocks: int) -> Any:
        if self._boundaries is None or num_blocks == 0:
            return None
        return self._boundaries.state_at(chain.hashes[num_blocks - 1])

    def confirm_state(self, sequence: Sequence, state: Any) -> None:
        """Give a sequence its state of recurrent layers; it may be used then."""
        sequence.state, sequence.latched = state, False

    def reach(self, sequence: Sequence, state: KeptState, *, rung: bool) -> None:
        """Note that a state at a boundary was computed; the blocks up to there are committed.

        Args:
            sequence: Whose.
            state: The state.
            rung: Publish it at once; otherwise when the sequence ends, if no newer one came.
        """
        if (
            self._boundaries is None
            or sequence.num_published * self.block_size < state.boundary
        ):
            return
        if rung:
            self._boundaries.keep(sequence.owner, sequence.chain, state)
            last = sequence.chain.hashes[state.boundary // self.block_size - 1]
            self._num_publications += self._promised.withdraw(sequence.id, [last])
        else:
            sequence.reached = state

    def rungs(self, sequence: Sequence) -> list[int]:
        """Return the boundaries at which a sequence's prefill has to stop for a snapshot."""
        if not self._recurrent or self._boundaries is None:
            return []
        return self._boundaries.rungs(len(sequence.tokens), sequence.frontier)

    def find_blocks(self, chain: PrefixChain, first: int, count: int) -> list[BlockId]:
        """Return the ids of published blocks `[first, first + count)` of a chain.

        Of the primary group; up to the first block that is not held any more. Changes nothing.
        """
        return self._primary.find_blocks(chain, first, count)

    def attach(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Take references to the hit's blocks and begin behind them.

        The rest of the prompt's full blocks becomes pending: peers see that it is on its way.

        Raises:
            CacheMisuseError: The sequence is not new, or the hit is another one's or out of
                date; nothing was changed.
        """
        sequence.expect(SequenceStatus.NEW, "attach")
        hashes = sequence.chain.hashes
        num_blocks = hit.length // self.block_size
        held = [g.real_blocks(b) for g, b in zip(self.groups, hit.blocks, strict=True)]
        for blocks, all_blocks in zip(held, hit.blocks, strict=True):
            first = len(all_blocks) - len(blocks)
            if [block.hash for block in blocks] != hashes[first:num_blocks]:
                raise CacheMisuseError(
                    f"attach sequence {sequence.id}", "the hit is not valid (any more)"
                )
        for group, table, blocks in zip(self.groups, sequence.tables, held, strict=True):
            group.allocator.share(blocks)
            table.extend_null(num_blocks - len(blocks))
            table.extend(blocks)
        sequence.start_at(hit.length)
        sequence.state = hit.state
        sequence.latched = self._recurrent and hit.length > 0 and hit.state is None
        self._pending.claim(sequence.id, hashes[num_blocks:])
        self._prefix_lookups += 1
        self._prefix_hit_tokens += hit.length
        self._prefix_unbacked_tokens += hit.unbacked

    def reserve(self, sequence: Sequence, n: int) -> None:
        """Back the next `n` positions with blocks in every group, and move the cursor.

        A group that is short of blocks grows, then evicts. All groups make room before any
        hands out a block, so that the reservation holds in every group or changes none.

        Raises:
            CacheExhaustedError: A group has too few blocks. Pools may have grown, and blocks
                that a window has moved past may be gone, nothing else.
            CacheMisuseError: The sequence is not attached, or `n` is negative.
        """
        sequence.expect(SequenceStatus.ATTACHED, "reserve")
        if n < 0:
            raise CacheMisuseError(f"reserve {n} positions", "a count is not negative")
        end = sequence.cursor + n
        missing = [table.num_missing(end) for table in sequence.tables]
        if any(missing):
            for group, count in zip(self.groups, missing, strict=True):
                self._make_room(group, sequence, count)
            for group, table, count in zip(self.groups, sequence.tables, missing, strict=True):
                table.extend(group.allocator.allocate(count))
        sequence.advance(n)

    def _make_room(self, group: GroupManager, sequence: Sequence, count: int) -> None:
        """Make room in a group; if need be with what the sequence will not see any more.

        That is blocks which steps in flight still read and write. The device does what it is
        told in order, so they may be given away; nobody will find them, though.
        """
        try:
            group.make_room(count)
        except CacheExhaustedError:
            table = sequence.tables[group.index]
            passed = table.expire(group.first_needed(sequence.cursor))
            if not passed:
                raise
            group.allocator.expire(passed)
            group.make_room(count)

    def reserve_restore(self, sequence: Sequence, n: int) -> None:
        """Back the next `n` positions with blocks that a restore will fill.

        Groups with a window get blocks for the window at the end alone, and hold them apart
        until `WindowKeeper.install` says where that is.

        Raises:
            CacheExhaustedError: As `reserve`.
            CacheMisuseError: As `reserve`.
        """
        sequence.expect(SequenceStatus.ATTACHED, "reserve")
        end = sequence.cursor + n
        counts = [
            blocks_for(end, self.block_size) - max(group.first_needed(end), len(table))
            for group, table in zip(self.groups, sequence.tables, strict=True)
        ]
        for group, count in zip(self.groups, counts, strict=True):
            group.make_room(count)
        taken = [g.allocator.allocate(n) for g, n in zip(self.groups, counts, strict=True)]
        spare: list[list[Block]] = []
        for group, table, blocks in zip(self.groups, sequence.tables, taken, strict=True):
            table.extend([] if group.is_window else blocks)
            spare.append(blocks if group.is_window else [])
        sequence.spare = tuple(spare)
        sequence.advance(n)

    def record(self, sequence: Sequence, tokens: abc.Sequence[int]) -> None:
        """Append known tokens; see `Sequence.record`."""
        sequence.record(tokens)

    def commit(self, sequence: Sequence, n: int) -> None:
        """Move the frontier: `n` more positions are computed in every group."""
        sequence.commit(n)

    def rollback(self, sequence: Sequence, n: int) -> None:
        """Move the cursor back by `n`, to the frontier at most; see `Sequence.rollback`.

        What a restore held for its windows and did not use is given back.

        Raises:
            CacheMisuseError: As `Sequence.rollback`, or a window has given way to what would
                be undone.
        """
        end = sequence.cursor - n
        for group, table in zip(self.groups, sequence.tables, strict=True):
            if table.num_expired > group.first_needed(end):
                raise CacheMisuseError(
                    f"roll back {n} tokens (sequence {sequence.id})",
                    f"the window of a token at {end} is not held any more",
                )
        sequence.rollback(n)
        give_spare_back(self.groups, sequence)

    def publish(self, sequence: Sequence) -> int:
        """Publish the full blocks below the frontier, chain head first, in all groups at once.

        Then the blocks that a window has moved past are given back.

        What a peer has published meanwhile counts as published; the table keeps its own
        block, since no entry is ever exchanged. A block whose hash belongs to another content
        ends the chain: what follows could not be found.

        Returns:
            How many more blocks of the sequence are published now.

        Raises:
            CacheMisuseError: The sequence is not attached.
        """
        sequence.expect_usable("publish")
        first, end = sequence.num_published, sequence.frontier // self.block_size
        if first < end:
            self._publish_blocks(sequence, first, end)
        if self.windows is not None:
            self.windows.move(sequence, first)
        return sequence.num_published - first

    def _publish_blocks(self, sequence: Sequence, first: int, end: int) -> None:
        sequence.chain.extend(sequence.tokens, end)
        while sequence.num_published < end and self._publish_next(sequence):
            sequence.num_published += 1
        # whoever waits for a chain that has ended here would wait in vain
        settled = end if sequence.num_published == end else None
        self._pending.withdraw(sequence.id, sequence.chain.hashes[first:settled])
        self._num_publications += 1

    def _publish_next(self, sequence: Sequence) -> bool:
        index = sequence.num_published
        return all(
            group.publish(table.blocks[index], sequence.chain, index)
            for group, table in zip(self.groups, sequence.tables, strict=True)
        )

    def release(self, sequence: Sequence) -> None:
        """Give all references back and end the sequence.

        When the last one goes, memory's refusals are forgotten: what waits then has nobody
        left to wait for, so it is admitted and tries a growth of its own.

        Raises:
            CacheMisuseError: It is released already.
        """
        sequence.move(SequenceStatus.RELEASED)
        if self._boundaries is not None and sequence.reached is not None:
            self._boundaries.keep(sequence.owner, sequence.chain, sequence.reached)
        sequence.state = sequence.reached = None
        give_spare_back(self.groups, sequence)
        for group, table in zip(self.groups, sequence.tables, strict=True):
            group.allocator.free(table.take_all())
        if self.windows is not None:
            self.windows.touch(sequence)
        self._num_publications += self._promised.withdraw(sequence.id, sequence.chain.hashes)
        unpublished = sequence.chain.hashes[sequence.num_published :]
        self._num_publications += self._pending.withdraw(sequence.id, unpublished)
        del self._sequences[sequence.id]
        if not any(s.status is SequenceStatus.ATTACHED for s in self._sequences.values()):
            for group in self.groups:
                group.forget_refusal()

    def purge(self) -> None:
        """Unpublish everything in every group; live sequences go on."""
        if self._boundaries is not None:
            self._boundaries.clear()
        if self.windows is not None:
            self.windows.clear()
        for group in self.groups:
            group.allocator.purge()

    def stats(self) -> CacheStats:
        """Return the figures as they are now."""
        return CacheStats(
            groups=tuple(group.stats() for group in self.groups),
            prefix_lookups=self._prefix_lookups,
            prefix_hit_tokens=self._prefix_hit_tokens,
            prefix_unbacked_tokens=self._prefix_unbacked_tokens,
        )

    def check(self) -> None:
        """Verify every equation that must hold; O(blocks).

        Raises:
            AssertionError: One is broken; a fault of this room.
        """
        check_blocks(self.groups, list(self._sequences.values()))
        assert self._pending.owners <= self._sequences.keys(), "only live sequences are awaited"
