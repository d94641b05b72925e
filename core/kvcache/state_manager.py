"""The manager of recurrent states: snapshots at boundaries, and states of live sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..ids import BlockHash, SequenceId
from .block_group import BlockGroup
from .block_identity import PrefixChain
from .manager import Found
from .pending import PendingBlocks
from .sequence import Sequence as CacheSequence
from .state_keeper import KeptState, StateKeeper


class LiveStates(Protocol):
    """The states of live sequences, on the device; see `pools.state_store.StateStore`."""

    def install(self, sequence: SequenceId, position: int, state: Any) -> None:
        """Set a sequence's state at `position` to a kept or restored state."""
        ...

    def rewind(self, sequence: SequenceId, position: int) -> None:
        """Take a sequence's state back to an earlier position of its last step.

        Raises:
            CacheMisuseError: The step kept no state there.
        """
        ...

    def release(self, sequence: SequenceId) -> None:
        """Free a sequence's state; a sequence without a state is ignored."""
        ...


class StateManager:
    """Finds prefixes with snapshots of recurrent layers. Implements `manager.Manager`.

    A state depends on all positions before it, so a snapshot continues exactly one chain at
    one boundary. Pure bookkeeping; owned by the engine thread.

    Attributes:
        groups: Empty, since states are not kept in blocks.
        enabled: True: the model has recurrent layers.
        keeper: The kept snapshots. With None no snapshot is kept and no prefix is found.
        live: The states of live sequences; None in tests of the bookkeeping alone.
        num_publications: Rises when a promised boundary gets its snapshot or is withdrawn.
    """

    groups: Sequence[BlockGroup] = ()
    enabled = True

    def __init__(self, block_size: int, keeper: StateKeeper | None) -> None:
        self.keeper = keeper
        self.live: LiveStates | None = None
        self._block_size = block_size
        self._promised = PendingBlocks()
        self.num_publications = 0

    # -- the operations of a manager -------------------------------------------------------

    def find(self, chain: PrefixChain, limit: int) -> Found:
        """Return the deepest boundary with a snapshot."""
        if self.keeper is None:
            return Found(0)
        deepest = self.keeper.deepest_boundary(chain.hashes[:limit])
        state = self.keeper.state_at(chain.hashes[deepest - 1]) if deepest else None
        return Found(deepest, state=state)

    def attach(self, sequence: CacheSequence, found: Found) -> None:
        """Install the snapshot. A prefix without a snapshot latches the sequence."""
        sequence.latched = found.num_blocks > 0 and found.state is None
        if found.state is not None:
            self._install(sequence, found.num_blocks * self._block_size, found.state)

    def make_room(self, sequence: CacheSequence, end: int) -> None:
        """Do nothing: the states of running sequences are allocated at load."""

    def reserve(self, sequence: CacheSequence, end: int) -> None:
        """Do nothing: the size of a state is constant."""

    def make_restore_room(self, sequence: CacheSequence, end: int) -> None:
        """Do nothing."""

    def reserve_restore(self, sequence: CacheSequence, end: int) -> None:
        """Do nothing."""

    def publish(self, sequence: CacheSequence, index: int) -> bool:
        """Return True: blocks hold no recurrent state."""
        return True

    def commit(self, sequence: CacheSequence, first: int) -> None:
        """Do nothing: `reach` takes snapshots after the step that computed them."""

    def check_rewind(self, sequence: CacheSequence, end: int) -> None:
        """Allow every rewind; `LiveStates.rewind` refuses positions without a kept state."""

    def rewind(self, sequence: CacheSequence) -> None:
        """Set the state to the kept state at the cursor."""
        if self.live is not None:
            self.live.rewind(sequence.id, sequence.cursor)

    def expire(self, sequence: CacheSequence) -> None:
        """Do nothing: a sequence holds only its newest state."""

    def release(self, sequence: CacheSequence) -> None:
        """Publish the state of the newest boundary and free the sequence's own state."""
        if self.keeper is not None and sequence.reached is not None:
            self.keeper.keep(sequence.owner, sequence.chain, sequence.reached)
        sequence.reached = None
        self._withdraw(sequence.id, sequence.chain.hashes)
        if self.live is not None:
            self.live.release(sequence.id)

    def clear(self) -> None:
        """Drop every snapshot."""
        if self.keeper is not None:
            self.keeper.clear()

    @property
    def num_bytes(self) -> int:
        """Bytes of the snapshots that are kept."""
        return 0 if self.keeper is None else self.keeper.snapshots.num_bytes

    @property
    def num_refused(self) -> int:
        """Snapshots that memory had no room for."""
        return 0 if self.keeper is None else self.keeper.num_refused

    # -- boundaries ------------------------------------------------------------------------

    def boundaries(self, sequence: CacheSequence) -> list[int]:
        """Return the positions at which a prefill stops for a snapshot, ascending."""
        if self.keeper is None:
            return []
        return self.keeper.boundaries(len(sequence.tokens), sequence.frontier)

    def shared_prefix(self, one: CacheSequence, other: CacheSequence) -> int:
        """Return the length in tokens of the common prefix of two prompts, in whole blocks.

        The last token of either prompt is never part of the prefix. 0 if snapshots are not
        kept.
        """
        if self.keeper is None:
            return 0
        size, shared = self._block_size, 0
        for sequence in (one, other):
            sequence.chain.extend(sequence.tokens, sequence.num_prompt_blocks)
        limit = min((len(s.tokens) - 1) // size for s in (one, other))
        while shared < limit and one.chain.hashes[shared] == other.chain.hashes[shared]:
            shared += 1
        return shared * size

    def promise(self, sequence: CacheSequence, boundaries: Iterable[int]) -> None:
        """Mark boundaries as pending: the prefill will take snapshots there."""
        hashes = sequence.chain.hashes
        promised = [hashes[boundary // self._block_size - 1] for boundary in boundaries]
        self._promised.claim(sequence.id, promised)

    def awaited(self, chain: PrefixChain, held: int, limit: int) -> int:
        """Return the deepest pending boundary of a chain, in blocks; `held` without one."""
        for num_blocks in range(limit if len(self._promised) else held, held, -1):
            if chain.hashes[num_blocks - 1] in self._promised:
                return num_blocks
        return held

    def confirm(self, sequence: CacheSequence, state: KeptState) -> None:
        """Install the restored state of a sequence's prefix and remove the latch."""
        self._install(sequence, state.boundary, state.handle)
        sequence.latched = False

    def reach(self, sequence: CacheSequence, state: KeptState, *, shared: bool) -> None:
        """Take the state at a boundary that a step has computed.

        The state is dropped if the blocks up to the boundary are not published, since lookups
        could not reach the boundary.

        Args:
            sequence: The sequence of the state.
            state: The state.
            shared: True publishes the state now. False publishes the state at `release`,
                unless a newer one replaces it.
        """
        published = sequence.num_published * self._block_size
        if self.keeper is None or published < state.boundary:
            return
        if not shared:
            sequence.reached = state
            return
        self.keeper.keep(sequence.owner, sequence.chain, state)
        self._withdraw(
            sequence.id, [sequence.chain.hashes[state.boundary // self._block_size - 1]]
        )

    def _withdraw(self, sequence: SequenceId, hashes: Iterable[BlockHash]) -> None:
        self.num_publications += self._promised.withdraw(sequence, hashes)

    def _install(self, sequence: CacheSequence, position: int, state: Any) -> None:
        if self.live is not None:
            self.live.install(sequence.id, position, state)
