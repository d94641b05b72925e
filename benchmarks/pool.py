"""Whether a step costs more with a larger pool, in time or in memory."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx

import neve

from .figures import Figure, bounded, interleaved, random_tokens

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "qwen3"
STEPS = 64


def _load(pool_mb: int) -> neve.Model:
    return neve.load(
        CHECKPOINT, paged_cache_memory_mb=pool_mb, max_num_seqs=32, dtype="float32"
    )


def _step_ms(model: neve.Model, i: int) -> float:
    ids = [token % 4000 for token in random_tokens(64, i)]
    times = model.generate(ids, max_tokens=STEPS, ignore_eos=True).timings
    return (times.total_ms - times.ttft_ms) / (STEPS - 1)


def _step_peak_mib(model: neve.Model) -> float:
    before = model.stats().memory["active"]
    mx.reset_peak_memory()
    _step_ms(model, 999)
    return (model.stats().memory["peak"] - before) / 2**20


def pool() -> list[Figure]:
    """A decode step of the tiny Qwen3 with a pool of 64 MiB and one of 768 MiB or more."""
    with _load(64) as small, _load(2048) as large:
        times = interleaved([lambda i: _step_ms(small, i), lambda i: _step_ms(large, i)], 9)
        peaks = [_step_peak_mib(small), _step_peak_mib(large)]
        blocks = [m.info.initial_blocks for m in (small, large)]
    detail = f"{times[1]:.2f} ms with {blocks[1]} blocks, {times[0]:.2f} ms with {blocks[0]}"
    return [
        bounded("decode step, large/small pool", times[1] / times[0], 1.1, "x", detail),
        bounded("peak memory of steps, large - small pool", peaks[1] - peaks[0], 4, "MiB"),
    ]
