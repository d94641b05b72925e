"""Sidecars: recurrent states and windows on disk, beside the blocks of the primary group."""

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
"""Returns a state to write; None if the state was evicted meanwhile."""

IsStored: TypeAlias = Callable[[int], bool]
"""Takes a boundary in blocks, and returns whether its sidecar is known to be on disk."""


class Sidecars(Protocol):
    """The sidecars of a model. Owned by the engine thread."""

    def offers(self, prefix: PrefixChain, reach: int, is_stored: IsStored) -> list[Offer]:
        """Return the states that a request offers for writing, the deepest first.

        Args:
            prefix: The request's chain.
            reach: Leading blocks of the chain that are on disk.
            is_stored: Whether a boundary of the chain has a sidecar on disk.
        """
        ...

    def install(self, sequence: Any, boundary: int, pieces: Sequence[memoryview]) -> KeptState:
        """Install a sidecar's state in a sequence, and return the state for publication.

        Args:
            sequence: The sequence that is being restored.
            boundary: The boundary in tokens.
            pieces: The bytes of the sidecar.
        """
        ...


class RecurrentSidecars:
    """Sidecars of recurrent states, from the snapshots of a `StateKeeper`."""

    def __init__(self, lane: PagedLane, keeper: StateKeeper, policy: SidecarPolicy) -> None:
        """Make the sidecars, and let prefills take ladders of snapshots."""
        keeper.want_ladder = True
        self._lane = lane
        self._keeper = keeper
        self._policy = policy

    def offers(self, prefix: PrefixChain, reach: int, is_stored: IsStored) -> list[Offer]:
        """Return the deepest snapshot in reach, and shallower ones for a new chain.

        Prompts that diverge early from this chain find the shallow boundaries. A chain with a
        shallower sidecar on disk has written its ladder, so only the deepest one is offered.
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
        """Set the sequence's state to the sidecar's state."""
        state = self._lane.state_of_bytes(pieces)
        kept = KeptState(boundary, state)
        self._lane.cache.snapshots.confirm(sequence, kept)
        return kept


class WindowSidecars:
    """Sidecars of windows, read from the pages of the windows' blocks."""

    def __init__(self, lane: PagedLane, group: int, policy: SidecarPolicy) -> None:
        """Make the sidecars, and let requests pin anchors.

        Args:
            lane: The lane whose pool is read and written.
            group: The only group with a window.
            policy: The family's sidecar policy.
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

        Prompts with a common prefix share the sidecar of an anchor, so an anchor is written
        once. Each request also offers its deepest window.
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
        """Write the window to the sequence's blocks, except blocks that were in memory.

        The writes are lazy: the next step evaluates them.
        """
        layout = self._policy.expected_at(boundary)
        num_blocks = layout.tensors[0].dims[2] // self._block_size
        block_ids = self._windows.install(sequence, boundary)[self._group]
        if block_ids:
            blocks = blocks_of_window(pieces, self._kv_heads, num_blocks)
            self._pool.write_blocks(block_ids, blocks[-len(block_ids) :])
        return KeptState(boundary, None)


def sidecars_of(lane: PagedLane, policy: SidecarPolicy | None) -> Sidecars | None:
    """Return a model's sidecars; None if blocks hold the whole cache."""
    if policy is None:
        return None
    if lane.keeper is not None:
        return RecurrentSidecars(lane, lane.keeper, policy)
    (group,) = lane.layout.windows
    return WindowSidecars(lane, group, policy)
