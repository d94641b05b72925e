"""An invented disk: prefixes that outlive memory, given back when a test says so.

Objects are named by salt, tokens and extra keys of a prefix, not by the hashes of
`kvcache.block_identity`, so that a fault of one naming does not hide behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import attrs

from ..contract.cache_spec import CacheLayout
from ..ids import RequestId
from ..kvcache.coordinator import Coordinator
from ..kvcache.state_keeper import KeptState
from ..scheduler.cold_port import RestoreProgress
from ..scheduler.request import Request
from .simulated_device import Device

Name: TypeAlias = tuple[int, tuple[int, ...], tuple[tuple[int, ...], ...]]
"""Salt, tokens and extra keys of a prefix of whole blocks."""


@attrs.frozen(eq=False)
class Sidecar:
    """What a model keeps beside its blocks at a boundary.

    Attributes:
        windows: Group -> contents of the blocks of the window, the last one in front of the
            boundary.
        state: The recurrent state; None without such layers.
    """

    windows: dict[int, list[tuple[int, ...]]]
    state: int | None


@attrs.define(eq=False)
class _Restore:
    """A restore, in blocks: proposed, begun, or arrived up to `arrived`."""

    first: int
    end: int
    arrived: int | None = None
    written: int = 0
    ends: bool = False


class SimulatedDisk:
    """A `scheduler.cold_port.ColdPort` that holds what finished requests have left.

    Attributes:
        eager: Whether a restore arrives at once as a whole.
        spills: Whether the blocks of victims are written before they are taken.
        blocks: Name of a prefix -> contents of its last block.
        sidecars: Name of a prefix -> what is kept at its end.
    """

    def __init__(self, layout: CacheLayout, cache: Coordinator, device: Device) -> None:
        self.eager = False
        self.spills = False
        self.blocks: dict[Name, tuple[int, ...]] = {}
        self.sidecars: dict[Name, Sidecar] = {}
        self._layout = layout
        self._cache = cache
        self._device = device
        self._proposed: dict[RequestId, _Restore] = {}
        self._restores: dict[RequestId, _Restore] = {}

    @property
    def restoring(self) -> set[RequestId]:
        """Requests whose restore has begun and not ended."""
        return set(self._restores)

    @property
    def proposed(self) -> set[RequestId]:
        """Requests whose restore was proposed and not begun."""
        return set(self._proposed)

    # -- names -----------------------------------------------------------------------------

    def _name(self, request: Request, num_blocks: int) -> Name:
        keys = list(request.extra_keys[:num_blocks])
        while keys and not keys[-1]:
            keys.pop()  # blocks of text have no keys, whether or not a picture follows
        tokens = request.tokens[: num_blocks * self._cache.block_size]
        return request.salt, tuple(tokens), tuple(keys)

    @property
    def _needs_sidecars(self) -> bool:
        return bool(self._layout.windows or self._layout.states)

    # -- captures --------------------------------------------------------------------------

    def capture(self, request: Request) -> None:
        """Write the published blocks of a request that is about to give its sequence back."""
        sequence = request.sequence
        if sequence is None:
            return
        kept = self._cache.find_blocks(sequence.chain, 0, sequence.num_published)
        for index, block in enumerate(kept):
            contents = ()
            if self._layout.groups:
                contents = self._device.read_block(self._layout.primary, block)
            self.blocks[self._name(request, index + 1)] = contents
            sidecar = self._sidecar(request, index + 1)
            if sidecar is not None:
                self.sidecars[self._name(request, index + 1)] = sidecar

    def _sidecar(self, request: Request, num_blocks: int) -> Sidecar | None:
        """Return what memory holds beside the blocks at a boundary; None if it lacks a part."""
        kinds, chain = self._cache.kinds, request.sequence.chain
        state, windows = None, dict[int, list[tuple[int, ...]]]()
        if kinds.states is not None:
            keeper = kinds.states.keeper
            state = keeper and keeper.state_at(chain.hashes[num_blocks - 1])
            if state is None:
                return None
        if kinds.windows is not None:
            found = kinds.windows.blocks_at(chain, num_blocks)
            if found is None:
                return None
            read = self._device.read_block
            windows = {g: [read(g, block) for block in ids] for g, ids in found.items()}
        return Sidecar(windows, state)

    def spill(self, request: Request) -> bool:
        """Write a victim's blocks, if the disk does so at all."""
        if self.spills:
            self.capture(request)
        return self.spills

    # -- restores --------------------------------------------------------------------------

    def propose(self, request: Request, hit_length: int) -> int:
        """Return the tokens behind a hit that the disk holds."""
        size = self._cache.block_size
        first, limit = hit_length // size, (len(request.tokens) - 1) // size
        end = max(self._ends(request, first, limit), default=first)
        if end > first:
            self._proposed[request.id] = _Restore(first, end)
        return (end - first) * size

    def _ends(self, request: Request, first: int, limit: int) -> Iterator[int]:
        """Yield the boundaries behind `first`, in blocks, at which a restore can end."""
        for end in range(first + 1, limit + 1):
            name = self._name(request, end)
            if name not in self.blocks:
                return
            if not self._needs_sidecars or name in self.sidecars:
                yield end

    def begin(self, request: Request) -> None:
        """Begin the proposed restore."""
        self._restores[request.id] = self._proposed.pop(request.id)
        if self.eager:
            self.arrive(request)

    def arrive(self, request: Request, lost: int = 0) -> None:
        """Have a restore end, but for the last `lost` blocks."""
        restore = self._restores[request.id]
        ends = [*self._ends(request, restore.first, restore.end - lost)]
        restore.arrived, restore.ends = max(ends, default=restore.first), True

    def arrive_partly(self, request: Request, num_blocks: int) -> None:
        """Have more blocks of a restore arrive, and not its end; none once it has ended."""
        restore = self._restores[request.id]
        if restore.ends:
            return
        arrived = (restore.arrived or restore.first) + num_blocks
        restore.arrived = max(restore.first, min(arrived, restore.end))

    def advance(self, request: Request, *, idle: bool) -> RestoreProgress:
        """Write what has arrived into the request's blocks."""
        restore = self._restores[request.id]
        begin = restore.first + restore.written
        end = begin if restore.arrived is None else max(begin, restore.arrived)
        if self._needs_sidecars and not restore.ends:
            return RestoreProgress(0, False)  # blocks alone are of no use
        self._write_blocks(request, begin, end)
        restore.written += end - begin
        if restore.ends:
            del self._restores[request.id]
        state = self._install(request, end) if self._needs_sidecars and end > begin else None
        return RestoreProgress((end - begin) * self._cache.block_size, restore.ends, state)

    def _write_blocks(self, request: Request, begin: int, end: int) -> None:
        if self._layout.groups:
            group = self._layout.primary
            ids = request.sequence.tables[group].ids
            for index in range(begin, end):
                contents = self.blocks[self._name(request, index + 1)]
                self._device.write_block(group, ids[index], contents)

    def _install(self, request: Request, end: int) -> KeptState:
        """Give a request's sequence the windows and the state at a boundary."""
        boundary, sequence = end * self._cache.block_size, request.sequence
        sidecar, kinds = self.sidecars[self._name(request, end)], self._cache.kinds
        kept = KeptState(boundary, sidecar.state)
        if kinds.windows is not None:
            for group, ids in kinds.windows.install(sequence, boundary).items():
                contents = sidecar.windows[group]
                pairs = zip(ids, contents[len(contents) - len(ids) :], strict=True)
                for block, content in pairs:
                    self._device.write_block(group, block, content)
        if kinds.states is not None:
            kinds.states.confirm(sequence, kept)
        return kept

    def cancel(self, request: Request) -> None:
        """Give up a restore."""
        self._proposed.pop(request.id, None)
        self._restores.pop(request.id, None)
