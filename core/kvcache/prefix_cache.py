"""Open sequences, and the prefixes that new sequences find."""

from __future__ import annotations

from collections import abc

from ..contract.cache_spec import CacheLayout
from ..errors import CacheMisuseError
from ..ids import SHARED_DOMAIN, BlockId, SaltDomain, SequenceId
from .block_allocator import BlockAllocator
from .block_group import GrowPool
from .block_identity import ExtraKeys, PrefixChain
from .block_table import BlockTable
from .capacity import Capacity
from .kinds import Kinds, make_groups
from .no_snapshots import NoSnapshots
from .pending import PendingBlocks
from .prefix import PrefixHit, find_hit
from .sequence import Sequence, SequenceStatus
from .state_keeper import StateKeeper
from .state_manager import LiveStates
from .stats import PrefixCounts


class PrefixCache(Capacity):
    """The part of the cache that a sequence meets before its first step.

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
