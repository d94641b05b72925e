"""The walk behind a turn: what it computed is written, head first, within a budget."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import attrs

from ...contract.sidecar import SidecarLayout
from ..objects.keys import ColdChain, ObjectName
from .writer import WriteJob

STAMP_STEP_NS = 1000
"""How much older than its parent a block is made, so that leaves are evicted first."""

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
    """Where a turn's blocks are read."""

    def read(self, first: int, count: int) -> list[Pages]:
        """Return the bytes of blocks `[first, first + count)` of the chain.

        Fewer if memory does not hold them any more; nothing after the first that is gone.
        """
        ...


class Index(Protocol):
    """What a capture asks of a store."""

    def contains(self, name: ObjectName) -> bool:
        """Return whether an object is on disk; no I/O."""
        ...


class Queue(Protocol):
    """What a capture asks of the writer."""

    @property
    def free_slots(self) -> int:
        """Objects that an offer would take now."""
        ...

    def offer(self, job: WriteJob) -> bool:
        """Give an object to the writer, or drop it."""
        ...


@attrs.frozen(eq=False)
class StateOffer:
    """State at a boundary, ready to be written.

    Attributes:
        num_blocks: The boundary, in blocks.
        layout: What it looks like.
        payload: Returns its tensors; called if they are to be written.
    """

    num_blocks: int
    layout: SidecarLayout
    payload: Callable[[], Pages]


@attrs.frozen
class CaptureBudget:
    """What one turn may cost.

    Attributes:
        num_blocks: Blocks written; walking over persisted ones is free.
        seconds: Time that the walk takes from the engine thread.
    """

    num_blocks: int
    seconds: float


@attrs.define(eq=False)
class Capture:
    """One turn's walk. It goes on in small portions, between two steps.

    A walk stops at the first block that it cannot write. To skip it would gain nothing: a
    restore stops at the first hole too.

    Attributes:
        chain: Names of the sequence's blocks and states.
        names: Names of the turn's blocks, first block first.
        source: Where the blocks are read.
        encode: Makes a block's file, given its index and pages.
        budget: What the walk may cost.
        stamp_ns: Clock value of the turn's use of the chain.
        refusals: Objects that the store had refused when the walk began.
        written: Blocks that were handed to the writer.
        already: Blocks that were on disk before.
        spent_s: Time that counts towards the budget.
        stop: Why it ended; None while it goes on.
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
        """Leading blocks that are on disk or on their way there."""
        return self.written + self.already

    def advance(self, index: Index, queue: Queue, max_blocks: int) -> None:
        """Hand up to `max_blocks` blocks to the writer, as far as its queue has room.

        Nothing is read that could not be offered at once, nor after the deadline.
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
        """Walk to the next block that is not on disk; stop at the end or out of budget."""
        while self.reach < len(self.names) and index.contains(self.names[self.reach]):
            self.already += 1
        if self.reach == len(self.names):
            self.stop = StopReason.COMPLETE
        elif self.written >= self.budget.num_blocks:
            self.stop = StopReason.BUDGET

    def _run_length(self, index: Index, most: int) -> int:
        """Return how many of the next blocks are to be written, before one that is not."""
        most = min(most, self.budget.num_blocks - self.written, len(self.names) - self.reach)
        count = 0
        while count < most and not index.contains(self.names[self.reach + count]):
            count += 1
        return count
