"""Counters and figures of one scheduler."""

from __future__ import annotations

import attrs

from .plan import StepPlan


@attrs.frozen(kw_only=True)
class SchedulerStats:
    """Figures of a scheduler. Counts are since load; other figures are present values.

    Attributes:
        global_steps: Planned steps with rows.
        max_batch_occupancy: Most rows of a step.
        decode_batch_occupancy_hist: Number of decode rows -> steps with that number.
        fused_greedy_epilogue_steps: Steps whose rows were all sampled by one argmax.
        admitted: Admissions, resumed requests included.
        completed: Requests that finished, cancelled and failed ones included.
        admission_deferred_blocks: How often admission was refused for lack of blocks.
        admission_deferred_prefix: How often admission was deferred for a pending prefix.
        rows_alloc_evicted: Rows left out of a step for lack of blocks.
        preemptions: Preempted requests.
        preemptions_recompute: Preemptions without a spill to the cold tier.
        preemptions_ssd: Preemptions after a spill to the cold tier.
        ssd_restores: Admissions with a restore.
        ssd_restore_bytes: Restored bytes.
        ssd_restore_wait_ms: Total duration of restores in milliseconds.
        ssd_restore_waiting: Requests that are restoring now.
        running: Running requests.
        waiting: Requests in the queue.
        block_capacity: Blocks that all sequences together can hold at most.
        block_available: Free, evictable or growable blocks.
        block_watermark: Blocks that admission keeps free while requests run.
        reserved_blocks: Blocks that admitted requests still need for their known tokens.
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
