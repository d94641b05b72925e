"""State outside the blocks of the primary group: what the cold tier's sidecars hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

from ..coldtier.transfer.capture import StateOffer
from ..contract.sidecar import SidecarPolicy
from ..kvcache.block_identity import PrefixChain
from ..kvcache.retention import LADDER_RUNGS
from ..kvcache.snapshots import Snapshot
from ..kvcache.state_keeper import KeptState, StateKeeper
from ..pools.state_store import state_bytes
from ..pools.window_bytes import blocks_of_window, window_of_blocks
from .lanes import PagedLane

Offer: TypeAlias = Callable[[], StateOffer | None]
"""Makes a state ready to be written; None if it is gone meanwhile."""

IsStored: TypeAlias = Callable[[int], bool]
"""Whether the state after so many blocks of a chain is known to be on disk."""


class Sidecars(Protocol):
    """What a family keeps beside its blocks. Owned by the engine thread."""

    def offers(self, prefix: PrefixChain, reach: int, is_stored: IsStored) -> list[Offer]:
        """Return the states that a request writes, the deepest first.

        Args:
            prefix: The request's chain.
            reach: Blocks of it that are on disk.
            is_stored: Asks about its states.
        """
        ...

    def install(self, sequence: Any, boundary: int, pieces: Sequence[memoryview]) -> KeptState:
        """Give a sequence the state that was read for a boundary; for others to find.

        Args:
            sequence: Its blocks up to the boundary are being restored.
            boundary: Tokens.
            pieces: What the sidecar holds.
        """
        ...


class RecurrentSidecars:
    """States of recurrent layers, kept by a `StateKeeper`."""

    def __init__(self, lane: PagedLane, keeper: StateKeeper, policy: SidecarPolicy) -> None:
        """Have ladders kept from now on."""
        keeper.want_ladder = True
        self._lane = lane
        self._keeper = keeper
        self._policy = policy

    def offers(self, prefix: PrefixChain, reach: int, is_stored: IsStored) -> list[Offer]:
        """Return the deepest state in reach, and its ladder's rest.

        Shallow rungs are what a prompt finds that parts from this one early. A chain that has
        a state on disk has had its ladder: from then on a request writes one.
        """
        found = self._keeper.on_chain(prefix.hashes[:reach])
        had_ladder = any(is_stored(kept.num_blocks) for kept in found[1:])
        return [
            partial(self._offer, kept) for kept in found[: 1 if had_ladder else LADDER_RUNGS]
        ]

    def _offer(self, kept: Snapshot) -> StateOffer:
        layout = self._policy.expected_at(kept.boundary)
        return StateOffer(kept.num_blocks, layout, partial(state_bytes, kept.handle))

    def install(self, sequence: Any, boundary: int, pieces: Sequence[memoryview]) -> KeptState:
        """Let the sequence's next step go on from the state."""
        state = self._lane.state_of_bytes(pieces)
        kept = KeptState(boundary, state)
        self._lane.cache.snapshots.confirm(sequence, kept)
        return kept


class WindowSidecars:
    """Windows of sliding layers, cut out of the blocks that hold them."""

    def __init__(self, lane: PagedLane, group: int, policy: SidecarPolicy) -> None:
        """Have anchors held on to from now on.

        Args:
            lane: Whose pool.
            group: The only group with a window.
            policy: The family's.
        """
        windows = lane.cache.kinds.windows
        assert windows is not None
        self._windows = windows
        self._block_size = lane.cache.block_size
        self._pool = lane.pools[group]
        self._group = group
        self._policy = policy
        self._kv_heads = policy.layout.tensors[0].dims[1]
        self._windows.pins.want_anchors(policy.anchors)

    def offers(self, prefix: PrefixChain, reach: int, is_stored: IsStored) -> list[Offer]:
        """Return the deepest window in reach, and each anchor below it that the disk lacks.

        An anchor is the same object for all prompts that begin alike, so that it is written
        once; a conversation writes one window a request besides.
        """
        deepest = self._windows.deepest(prefix, reach)
        anchors = [n for n in self._policy.anchors if n < deepest and not is_stored(n)]
        boundaries = ([deepest] if deepest else []) + anchors[::-1]
        return [partial(self._offer, prefix, num_blocks) for num_blocks in boundaries]

    def _offer(self, prefix: PrefixChain, num_blocks: int) -> StateOffer | None:
        found = self._windows.blocks_at(prefix, num_blocks)
        if found is None:
            return None
        layout = self._policy.expected_at(num_blocks * self._block_size)
        return StateOffer(num_blocks, layout, partial(self._read, found[self._group]))

    def _read(self, block_ids: Sequence[int]) -> list[memoryview]:
        return window_of_blocks(self._pool.read_blocks(block_ids), self._kv_heads)

    def install(self, sequence: Any, boundary: int, pieces: Sequence[memoryview]) -> KeptState:
        """Write the window into blocks of the sequence; those that memory had stay as they are.

        Lazily, as a step does.
        """
        layout = self._policy.expected_at(boundary)
        num_blocks = layout.tensors[0].dims[2] // self._block_size
        block_ids = self._windows.install(sequence, boundary)[self._group]
        if block_ids:
            blocks = blocks_of_window(pieces, self._kv_heads, num_blocks)
            self._pool.write_blocks(block_ids, blocks[-len(block_ids) :])
        return KeptState(boundary, None)


def sidecars_of(lane: PagedLane, policy: SidecarPolicy | None) -> Sidecars | None:
    """Return what a model keeps beside its blocks; None if its blocks hold all."""
    if policy is None:
        return None
    if lane.keeper is not None:
        return RecurrentSidecars(lane, lane.keeper, policy)
    (group,) = lane.layout.windows
    return WindowSidecars(lane, group, policy)
