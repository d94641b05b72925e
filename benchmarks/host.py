"""What the host does a step: scheduler, tables, graph inputs, publication, delivery.

The model does nothing: its forward returns the same logits whatever it is asked.
"""

from __future__ import annotations

import queue
import time
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx

import neve
from neve.contract.cache_spec import FullAttention, uniform_layout
from neve.contract.forward import ForwardOutput
from neve.contract.prompt import text_prompt
from neve.engine.cold import cold_stats
from neve.engine.commands import Submit
from neve.engine.core import Core
from neve.engine.faults import Faults
from neve.engine.handles import Handle
from neve.engine.journal import Journal
from neve.engine.lanes import PagedLane
from neve.engine.loop import Loop
from neve.engine.runner import Runner
from neve.ids import SHARED_DOMAIN, RequestId
from neve.kvcache.block_allocator import BlockAllocator
from neve.kvcache.coordinator import Coordinator
from neve.pools.layer_pool import LayerPool
from neve.sampling.params import SamplingParams
from neve.scheduler.scheduler import Scheduler
from neve.settings import SchedulerSettings
from neve.telemetry.trace import NULL_TRACE

from .figures import Figure, bounded

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "qwen3"
ROWS = 32
BLOCK_SIZE = 16
STEPS = 200


class IdleFamily:
    """A family whose forward computes nothing."""

    def __init__(self, vocab_size: int) -> None:
        self._logits = mx.zeros((ROWS, vocab_size))
        mx.eval(self._logits)

    def forward(self, model: Any, batch: Any, context: Any) -> ForwardOutput:
        """Return constant logits `[R, V]`."""
        num_rows = batch.logit_rows.shape[0]
        return ForwardOutput(self._logits[:num_rows] if num_rows else None)


def _loop(context: int) -> Loop:
    """Return a loop of 32 rows of `context` tokens each, one shared prefix."""
    with neve.load(CHECKPOINT, paged_cache_memory_mb=1) as model:
        info = attrs.evolve(model.info, vocab_size=16)
    layout = uniform_layout(FullAttention(1, 1), 1)
    num_blocks = context // BLOCK_SIZE + ROWS * (STEPS // BLOCK_SIZE + 8)
    pool = LayerPool(layout.groups[0], 1, num_blocks, BLOCK_SIZE, mx.float32)
    cache = Coordinator(layout, [BlockAllocator(num_blocks, BLOCK_SIZE)])
    lane = PagedLane(
        layout,
        [pool],
        cache,
        block_size=BLOCK_SIZE,
        max_num_seqs=ROWS,
        max_context=context + 10 * STEPS,
    )
    settings = SchedulerSettings(max_num_seqs=ROWS, max_batched_tokens=200_000)
    scheduler = Scheduler(
        settings, cache, max_context=context + 10 * STEPS, block_size=BLOCK_SIZE
    )
    runner = Runner(IdleFamily(16), None, layout, lane, row_exact=False)  # type: ignore[arg-type]
    journal = Journal("bench", NULL_TRACE, None, lambda: cold_stats(None), {})
    return Loop(Core(info, scheduler, runner, None, journal), queue.SimpleQueue())


def _microseconds(context: int) -> float:
    """Return host time a row and step with rows of `context` tokens."""
    loop = _loop(context)
    prefix = [i % 4000 for i in range(context)]
    params = SamplingParams(max_tokens=8 * STEPS, ignore_eos=True)
    for i in range(ROWS):
        handle = Handle(RequestId(i), lambda _: None, Faults())
        prompt = text_prompt((*prefix, i))
        loop._serve(Submit(handle, prompt, params, SHARED_DOMAIN, time.perf_counter()))
    while loop._scheduler.stats().waiting or loop._scheduler.stats().running < ROWS:
        loop._stepper.step()
    for _ in range(20):
        loop._stepper.step()
    start = time.perf_counter()
    for _ in range(STEPS):
        loop._stepper.step()
    return (time.perf_counter() - start) / STEPS / ROWS * 1e6


def host() -> list[Figure]:
    """Host time a row and step at 32 rows, at 1k and at 100k tokens of context."""
    short, long = _microseconds(1_000), _microseconds(100_000)
    return [
        bounded("host time a row and step, 1k context", short, 30, "us"),
        bounded("host time a row and step, 100k context", long, 30, "us"),
        bounded("host time, 100k/1k context", long / short, 1.2, "x"),
    ]
