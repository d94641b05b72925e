"""Counters of one scheduler."""

from __future__ import annotations

import attrs

from .plan import StepPlan


@attrs.frozen(kw_only=True)
class SchedulerStats:
    """A snapshot; counts are since load, the rest is the present.

    Attributes:
        global_steps: Steps that were planned.
        max_batch_occupancy: Most rows that one step had.
        decode_batch_occupancy_hist: Decode rows -> steps that had so many.
        fused_greedy_epilogue_steps: Steps whose rows were all sampled by one argmax.
        admitted: Admissions, resumed requests included.
        completed: Requests that finished, however.
        admission_deferred_blocks: Times that the next turn waited for blocks.
        admission_deferred_prefix: Times that a request waited for a prefix in the making.
        rows_alloc_evicted: Rows that made no progress in a step for want of a block.
        preemptions: Requests whose blocks were taken.
        preemptions_recompute: Those that will recompute what the cache cannot give back.
        preemptions_ssd: Those whose blocks were written to the cold tier first.
        ssd_restores: Admissions that waited for the disk.
        ssd_restore_bytes: Bytes that they restored.
        ssd_restore_wait_ms: Time that they waited together, in milliseconds.
        ssd_restore_waiting: Requests that wait for it now.
        running: Requests in the running set.
        waiting: Requests in the queue.
        block_capacity: Blocks that sequences may ever hold together.
        block_available: Blocks that could be had now.
        block_watermark: Blocks that admission leaves free while others run.
        reserved_blocks: Blocks that running requests will still need for their known tokens.
    """

    global_steps: int
    max_batch_occupancy: int
    decode_batch_occupancy_hist: dict[int, int]
    fused_greedy_epilogue_steps: int
    admitted: int
    completed: int
    admission_deferred_blocks: int
    admission_deferred_prefix: int
    rows_alloc_evicted: int
    preemptions: int
    preemptions_recompute: int
    preemptions_ssd: int
    ssd_restores: int
    ssd_restore_bytes: int
    ssd_restore_wait_ms: float
    ssd_restore_waiting: int
    running: int
    waiting: int
    block_capacity: int
    block_available: int
    block_watermark: int
    reserved_blocks: int


@attrs.define
class SchedulerCounters:
    """The counts behind `SchedulerStats`; the scheduler and the engine add to them."""

    global_steps: int = 0
    max_batch_occupancy: int = 0
    decode_batch_occupancy_hist: dict[int, int] = attrs.field(factory=dict)
    fused_greedy_epilogue_steps: int = 0
    admitted: int = 0
    completed: int = 0
    admission_deferred_blocks: int = 0
    admission_deferred_prefix: int = 0
    rows_alloc_evicted: int = 0
    preemptions: int = 0
    preemptions_recompute: int = 0
    preemptions_ssd: int = 0
    ssd_restores: int = 0
    ssd_restore_bytes: int = 0
    ssd_restore_wait_ms: float = 0.0

    def count_step(self, plan: StepPlan) -> None:
        """Count a step that has rows."""
        self.global_steps += 1
        self.max_batch_occupancy = max(self.max_batch_occupancy, len(plan.rows))
        decode = plan.num_decode_rows
        hist = self.decode_batch_occupancy_hist
        hist[decode] = hist.get(decode, 0) + 1
