"""The capture of a request's blocks: a walk from the head, within a budget."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import attrs

from ...contract.sidecar import SidecarLayout
from ..objects.keys import ColdChain, ObjectName
from .writer import WriteJob

STAMP_STEP_NS = 1000
"""How much older than its parent a block is stamped, so that leaves are evicted first."""

Pages: TypeAlias = list[memoryview]
"""Bytes of one block: keys and values of each layer in turn."""


class StopReason(enum.Enum):
    """Why a walk ended."""

    COMPLETE = "complete"
    BUDGET = "budget"
    DEADLINE = "deadline"
    EVICTED = "evicted"
    REFUSED = "refused"


class BlockSource(Protocol):
    """Access to the bytes of a request's blocks."""

    def read(self, first: int, count: int) -> list[Pages]:
        """Return the bytes of blocks `[first, first + count)` of the chain.

        Fewer blocks if memory has lost one: the blocks before the first lost block.
        """
        ...


class Index(Protocol):
    """The store's index, as a capture uses it."""

    def contains(self, name: ObjectName) -> bool:
        """Return whether an object is on disk; no I/O."""
        ...


class Queue(Protocol):
    """The writer's queue, as a capture uses it."""

    @property
    def free_slots(self) -> int:
        """Objects that an offer would enqueue now."""
        ...

    def offer(self, job: WriteJob) -> bool:
        """Enqueue an object for the writer, or drop the object."""
        ...


@attrs.frozen(eq=False)
class StateOffer:
    """A snapshot at a boundary, ready to be written as a sidecar.

    Attributes:
        num_blocks: The boundary, in blocks.
        layout: The sidecar's layout.
        payload: Returns the sidecar's tensors; called only if they are to be written.
    """

    num_blocks: int
    layout: SidecarLayout
    payload: Callable[[], Pages]


@attrs.frozen
class CaptureBudget:
    """The bounds on one request's capture.

    Attributes:
        num_blocks: Blocks to write; persisted blocks along the walk are free.
        seconds: Time of the engine thread.
    """

    num_blocks: int
    seconds: float


@attrs.define(eq=False)
class Capture:
    """The walk behind one request, advanced in small portions between steps.

    A walk stops at the first block that cannot be written. Later blocks would be useless,
    because a restore stops at the first hole.

    Attributes:
        chain: Names of the sequence's blocks and states.
        names: Names of the request's blocks, in chain order.
        source: Access to the bytes of the blocks.
        encode: Makes a block's file from its index and pages.
        budget: Bounds of the walk.
        stamp_ns: Time of the request's use of the chain.
        refusals: Objects that the store had refused before the walk began.
        written: Blocks that were given to the writer.
        already: Blocks that were already on disk.
        spent_s: Time that counts towards the budget.
        stop: Why the walk ended; None while the walk goes on.
    """

    chain: ColdChain
    names: Sequence[ObjectName]
    source: BlockSource
    encode: Callable[[int, Pages], Callable[[], Sequence[memoryview]]]
    budget: CaptureBudget
    stamp_ns: int
    refusals: int = 0
    written: int = attrs.field(init=False, default=0)
    already: int = attrs.field(init=False, default=0)
    spent_s: float = attrs.field(init=False, default=0.0)
    stop: StopReason | None = attrs.field(init=False, default=None)

    @property
    def reach(self) -> int:
        """Leading blocks that are on disk or in the writer's queue."""
        return self.written + self.already

    def advance(self, index: Index, queue: Queue, max_blocks: int) -> None:
        """Give up to `max_blocks` blocks to the writer, limited by the room in its queue.

        No block is read without room in the queue, or after the deadline.
        """
        self._skip_persisted(index)
        if self.stop is None and self.spent_s >= self.budget.seconds:
            self.stop = StopReason.DEADLINE
        if self.stop is not None:
            return
        count = self._run_length(index, min(max_blocks, queue.free_slots))
        if count == 0:
            return
        first = self.reach
        pages = self.source.read(first, count)
        for i, block in enumerate(pages, first):
            job = WriteJob(
                self.names[i], self.encode(i, block), self.stamp_ns - STAMP_STEP_NS * i
            )
            if not queue.offer(job):
                self.stop = StopReason.REFUSED
                return
            self.written += 1
        if len(pages) < count:
            self.stop = StopReason.EVICTED
            return
        self._skip_persisted(index)

    def _skip_persisted(self, index: Index) -> None:
        """Advance to the next block that is not on disk; stop at the end or out of budget."""
        while self.reach < len(self.names) and index.contains(self.names[self.reach]):
            self.already += 1
        if self.reach == len(self.names):
            self.stop = StopReason.COMPLETE
        elif self.written >= self.budget.num_blocks:
            self.stop = StopReason.BUDGET

    def _run_length(self, index: Index, most: int) -> int:
        """Return the number of consecutive blocks to write next, at most `most`."""
        most = min(most, self.budget.num_blocks - self.written, len(self.names) - self.reach)
        count = 0
        while count < most and not index.contains(self.names[self.reach + count]):
            count += 1
        return count
