"""One model's use of a store: object names, layout, reader and writer threads, counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from ..contract.sidecar import SidecarPolicy
from ..ids import SHARED_DOMAIN, ColdKey, Fingerprint, SaltDomain
from .objects.format import (
    KvGeometry,
    encode,
    encode_tokens,
    kv_layout,
    sidecar_layout,
)
from .objects.keys import ColdChain, ColdGroup, ObjectName
from .stats import ColdCacheStats, ColdSidecarStats, Counters
from .store.store import ColdStore
from .transfer.capture import (
    STAMP_STEP_NS,
    BlockSource,
    Capture,
    CaptureBudget,
    StateOffer,
    StopReason,
)
from .transfer.cost import CostModel
from .transfer.ends import Ends
from .transfer.reader import ColdReader
from .transfer.ticket import Ticket
from .transfer.walk import RestorePlan, plan_restore
from .transfer.wanted import Wanted
from .transfer.writer import ColdWriter, WriteJob


class ColdTier:
    """The cold tier of one loaded model. The engine thread owns the tier, but for `identify`.

    Attributes:
        counters: The tier's counters.
        cost: Measured cost of restoring and of prefilling.
        policy: Policy of the family's sidecars; None for a family without sidecars.
    """

    def __init__(
        self,
        store: ColdStore,
        geometry: KvGeometry,
        budget: CaptureBudget,
        *,
        policy: SidecarPolicy | None = None,
    ) -> None:
        """Take over a store for a model; `identify` must precede any read or write.

        Args:
            store: The store; closed with the tier.
            geometry: Geometry of the model's blocks.
            budget: Bound on the capture of one request.
            policy: Policy of the family's sidecars.
        """
        self.counters: Counters = store.counters
        self.policy = policy
        self._store = store
        self._layout = kv_layout(geometry, ColdGroup(policy.group) if policy else None)
        self._block_size = geometry.block_size
        self._budget = budget
        self._fingerprint: Fingerprint | None = None
        self._writer = ColdWriter(store, store.counters)
        self._reader = ColdReader(store)
        self._ends = Ends()
        self.cost = CostModel(self._layout.payload_bytes)

    def identify(self, fingerprint: Fingerprint) -> None:
        """Set the model's fingerprint, on which all object names depend. Any thread."""
        self._fingerprint = fingerprint

    @property
    def fingerprint(self) -> Fingerprint | None:
        """The model's fingerprint; None until `identify`."""
        return self._fingerprint

    def chain(
        self, salt: SaltDomain, extra_keys: Sequence[Sequence[int]] = ()
    ) -> ColdChain | None:
        """Return an empty chain of names; None while the fingerprint is not known."""
        if self._fingerprint is None:
            return None
        return ColdChain(self._fingerprint, self._block_size, salt, extra_keys)

    # -- restore ---------------------------------------------------------------------------

    def plan(
        self,
        chain: ColdChain,
        tokens: Sequence[int],
        first: int,
        limit: int,
        salt: SaltDomain = SHARED_DOMAIN,
    ) -> RestorePlan:
        """Return the blocks that can be read, and the cause of the first miss.

        A restore that is predicted to be slower than a prefill is declined, and counted. See
        `plan_restore`.
        """
        plan = plan_restore(
            self._store, chain, tokens, first, limit, policy=self.policy, salt=salt
        )
        if plan.cause == "no_block" and plan.end < len(chain.blocks):
            known = self._ends.cause(chain.blocks[plan.end].key)
            plan = attrs.evolve(plan, cause=known or plan.cause)
        declined = plan.num_blocks > 0 and not self.cost.restore_pays(
            plan.num_blocks,
            plan.num_blocks * self._block_size,
            self.state_bytes(plan.backings[0].num_blocks if plan.backings else 0),
        )
        unbacked = plan.num_blocks == 0 and plan.cause == "no_sidecar"
        if declined:
            plan = RestorePlan(first, first, (), "declined")
        if declined or unbacked:
            self.counters.add(restore_declines=1)
        elif plan.num_blocks == 0 and plan.cause is not None:
            self.counters.add(misses=1)
        return plan

    def state_bytes(self, num_blocks: int) -> int:
        """Return the bytes of the sidecar at a boundary of `num_blocks`; 0 without one."""
        if self.policy is None or num_blocks == 0:
            return 0
        return self.policy.expected_at(num_blocks * self._block_size).num_bytes

    def begin(self, plan: RestorePlan, chain: ColdChain, tokens: Sequence[int]) -> Ticket:
        """Start to read the plan's blocks, and mark the chain as used."""
        stamp_ns = time.time_ns()
        self._store.touch(chain.blocks[: plan.end], stamp_ns)
        for backing in plan.backings[:1]:
            self._store.touch([backing.name], _state_stamp(stamp_ns, backing.num_blocks))
        assert self._fingerprint is not None
        wanted = Wanted(self._fingerprint, self._layout, self._block_size, self.policy)
        ticket = wanted.ticket(plan, chain, tokens)
        self._reader.submit(ticket)
        return ticket

    @property
    def reader(self) -> ColdReader:
        """The threads that fill tickets."""
        return self._reader

    def count_restored(self, num_blocks: int) -> None:
        """Count blocks that were published."""
        self.counters.add(
            hits=num_blocks, bytes_restored=num_blocks * self._layout.payload_bytes
        )

    # -- capture ---------------------------------------------------------------------------

    def capture(
        self, chain: ColdChain, tokens: Sequence[int], num_blocks: int, source: BlockSource
    ) -> Capture:
        """Return a new walk over the first `num_blocks` blocks of a chain."""
        chain.extend(tokens, num_blocks)
        names, stamp_ns = chain.blocks[:num_blocks], time.time_ns()
        self._store.touch(names, stamp_ns)

        def encoder(index: int, pages: list[memoryview]) -> Callable[[], Any]:
            block = tokens[index * self._block_size : (index + 1) * self._block_size]
            payload = [encode_tokens(block), *pages]
            return self._encoder(names[index], payload, chain.after(index))

        refusals = self._writer.num_refusals
        return Capture(chain, names, source, encoder, self._budget, stamp_ns, refusals)

    def _encoder(
        self, name: ObjectName, payload: list[Any], after: ColdKey
    ) -> Callable[[], Any]:
        assert self._fingerprint is not None
        return partial(encode, name, self._fingerprint, self._layout, payload, after)

    def advance(self, capture: Capture, max_blocks: int) -> None:
        """Continue the walk with `Capture.advance`; a refusal by the store ends the walk."""
        if self._writer.num_refusals != capture.refusals:
            capture.stop = StopReason.REFUSED
        if capture.stop is None:
            capture.advance(self._store, self._writer, max_blocks)
        if capture.stop is not None:
            self._ends.remember(capture)

    def has_state(self, chain: ColdChain, tokens: Sequence[int], num_blocks: int) -> bool:
        """Return whether the sidecar at a boundary of `num_blocks` is known to be on disk."""
        assert self.policy is not None
        group = ColdGroup(self.policy.group)
        return self._store.contains(chain.sidecar(group, tokens, num_blocks * self._block_size))

    def offer_state(
        self,
        chain: ColdChain,
        tokens: Sequence[int],
        capture: Capture,
        state: StateOffer | None,
        deadline: float = 0.0,
        *,
        first: bool = True,
    ) -> str:
        """Write a request's snapshot as a sidecar behind its blocks.

        Args:
            chain: Names of the request's objects.
            tokens: The request's tokens.
            capture: The request's walk, which has ended.
            state: The snapshot at the deepest boundary that the walk reached.
            deadline: Last moment to wait for a place in the queue, in `time.monotonic`.
            first: True for the request's first sidecar, which counts the request.

        Returns:
            The outcome, for the trace.
        """
        self.counters.add_sidecar(capture_reached=int(first))
        if capture.reach == 0:
            self.counters.add_sidecar(chain_empty=1)
            return "chain_empty"
        if state is None or self.policy is None or state.num_blocks > capture.reach:
            self.counters.add_sidecar(boundary_skips=1)
            return "no_boundary"
        boundary = state.num_blocks * self._block_size
        name = chain.sidecar(ColdGroup(self.policy.group), tokens, boundary)
        stamp_ns = _state_stamp(capture.stamp_ns, state.num_blocks)
        if self._store.contains(name):
            self._store.touch([name], stamp_ns)
            self.counters.add_sidecar(already_persisted=1)
            return "already_persisted"
        if state.layout != self.policy.expected_at(boundary):
            self.counters.add_sidecar(boundary_skips=1)
            return "wrong_layout"
        job = self._state_job(name, state, chain.after(state.num_blocks), stamp_ns)
        return "enqueued" if self._writer.offer_before(job, deadline) else "dropped"

    def _state_job(
        self, name: ObjectName, state: StateOffer, after: ColdKey, stamp_ns: int
    ) -> WriteJob:
        assert self._fingerprint is not None
        layout = sidecar_layout(name.group, state.layout, state.num_blocks * self._block_size)
        encoder = partial(encode, name, self._fingerprint, layout, state.payload(), after)
        return WriteJob(name, encoder, stamp_ns)

    @property
    def free_slots(self) -> int:
        """Objects that the writer would accept now."""
        return self._writer.free_slots

    # -- the rest --------------------------------------------------------------------------

    def stats(self) -> tuple[ColdCacheStats, ColdSidecarStats]:
        """Return the present counts."""
        cache = self.counters.cache(
            root=str(self._store.root), quota_bytes=self._store.quota_bytes
        )
        return cache, self.counters.sidecar()

    def drain(self, timeout_s: float) -> bool:
        """Wait for the writer; return whether all objects were written."""
        return self._writer.drain(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Drain the writer, end both threads, close the store.

        A thread that hangs in the disk is left behind, and the store's descriptors stay open:
        a closed descriptor may be reused for another file, on which the thread would then act.

        Returns:
            Whether all objects were written.
        """
        deadline = time.monotonic() + timeout_s
        self._reader.close(timeout_s)
        landed = self._writer.close(max(0.0, deadline - time.monotonic()))
        if not (self._reader.is_alive or self._writer.is_alive):
            self._store.close()
        return landed


def _state_stamp(stamp_ns: int, num_blocks: int) -> int:
    """Return a sidecar's stamp, between those of the blocks before and behind its boundary.

    A sidecar is of no use without the block at its boundary, so the sidecar is evicted first.
    """
    return stamp_ns - STAMP_STEP_NS * num_blocks + STAMP_STEP_NS // 2
