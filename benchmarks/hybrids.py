"""Recurrent hybrids against mlx-lm on the tiny checkpoints, and what reuse is worth to them."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mlx.core as mx

import neve
from neve.layers.gated_delta import gated_delta

from .figures import Figure, bounded, interleaved, random_tokens, ratio, seconds

FAMILIES = ("lfm2", "qwen3_5", "nemotron_h")
CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
VOCABULARY = 1000
SUFFIXES = (20, 60, 120, 200, 300, 450, 600, 700)


@functools.cache
def _ours(family: str) -> neve.Model:
    return neve.load(CHECKPOINTS / family, dtype="float32", paged_cache_memory_mb=256)


@functools.cache
def _theirs(family: str) -> Any:
    from mlx_lm.utils import load_model

    model, _ = load_model(CHECKPOINTS / family)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def _ids(count: int, seed: int) -> list[int]:
    return [token % VOCABULARY for token in random_tokens(count, seed)]


def _ours_at_once(family: str, prompts: list[list[int]], max_tokens: int) -> None:
    handles = [
        _ours(family).submit(ids, max_tokens=max_tokens, ignore_eos=True) for ids in prompts
    ]
    for handle in handles:
        handle.result()


def _theirs_at_once(family: str, prompts: list[list[int]], max_tokens: int) -> None:
    from mlx_lm.generate import BatchGenerator

    width = len(prompts)
    generator = BatchGenerator(
        _theirs(family), completion_batch_size=width, prefill_batch_size=width
    )
    generator.insert(prompts, [max_tokens] * width)
    finished = 0
    while finished < width:
        responses = generator.next_generated()
        finished += sum(response.finish_reason is not None for response in responses)
    generator.close()


def _theirs_one(family: str, ids: list[int], max_tokens: int) -> tuple[float, float]:
    """Return seconds to the first token, and tokens a second after it."""
    from mlx_lm.generate import generate_step

    start, stamps = time.perf_counter(), []
    for _ in generate_step(mx.array(ids), _theirs(family), max_tokens=max_tokens):
        stamps.append(time.perf_counter())
    rest = stamps[-1] - stamps[0]
    return stamps[0] - start, (max_tokens - 1) / rest if rest else 0.0


def _ours_one(family: str, ids: list[int], max_tokens: int) -> tuple[float, float]:
    times = _ours(family).generate(ids, max_tokens=max_tokens, ignore_eos=True).timings
    rest = (times.total_ms - times.ttft_ms) / 1e3
    return times.ttft_ms / 1e3, (max_tokens - 1) / rest if rest else 0.0


def hybrids() -> list[Figure]:
    """Each family alone, in equal rows, and in mixed rows behind one prefix."""
    return [*[figure for family in FAMILIES for figure in _family(family)], _linear()]


def _linear() -> Figure:
    """Return how much longer a token takes in a gated-delta layer behind 4,096 than 1,024."""

    def per_token(length: int, seed: int) -> float:
        keys = mx.random.split(mx.random.key(seed), 5)
        q, k, v = (mx.random.normal((1, length, 16, 128), key=key) / 11 for key in keys[:3])
        log_g = -mx.abs(mx.random.normal((1, length, 16), key=keys[3]))
        beta = mx.sigmoid(mx.random.normal((1, length, 16), key=keys[4]))
        state = mx.zeros((1, 16, 128, 128))
        mx.eval(q, k, v, log_g, beta, state)
        return seconds(lambda: mx.eval(gated_delta(q, k, v, log_g, beta, state))) / length

    long, short = interleaved([lambda i: per_token(4096, i), lambda i: per_token(1024, i)], 5)
    detail = f"{long * 1e6:.0f} us against {short * 1e6:.0f} us a token"
    return bounded("gated delta: a token of 4k/1k", long / short, 1.1, "x", detail)


def _family(family: str) -> list[Figure]:
    def equal(i: int) -> list[list[int]]:
        return [_ids(128, 1000 + 10 * i + j) for j in range(8)]

    def mixed(i: int) -> list[list[int]]:
        shared = _ids(512, 5000 + i)
        return [shared + _ids(length, 6000 + 10 * i + length) for length in SUFFIXES]

    decode = interleaved(
        [
            lambda i: _ours_one(family, _ids(64, i), 48)[1],
            lambda i: _theirs_one(family, _ids(64, i), 48)[1],
        ],
        5,
    )
    prefill = interleaved(
        [
            lambda i: 512 / _ours_one(family, _ids(512, 100 + i), 1)[0],
            lambda i: 512 / _theirs_one(family, _ids(512, 100 + i), 1)[0],
        ],
        5,
    )
    rows = interleaved(
        [
            lambda i: 8 * 48 / seconds(lambda: _ours_at_once(family, equal(i), 48)),
            lambda i: 8 * 48 / seconds(lambda: _theirs_at_once(family, equal(i), 48)),
        ],
        3,
    )
    behind = interleaved(
        [
            lambda i: 8 * 32 / seconds(lambda: _ours_at_once(family, mixed(i), 32)),
            lambda i: 8 * 32 / seconds(lambda: _theirs_at_once(family, mixed(i), 32)),
        ],
        1,
    )
    unit = "tokens/s"
    return [
        ratio(f"{family}: decode, one request", *decode, 1.0, unit),
        ratio(f"{family}: prefill, 512 tokens", *prefill, 1.0, unit),
        ratio(f"{family}: 8 equal requests", *rows, 1.0, unit),
        ratio(f"{family}: 8 mixed requests, 512 shared", *behind, 2.0, unit),
        *_reuse(family),
    ]


def _reuse(family: str) -> list[Figure]:
    """A conversation of 2,000 tokens: its next turn, in the same process and in a new one."""
    cold: list[float] = []
    warm: list[float] = []
    restored: list[float] = []
    for i in range(3):
        ids = _ids(2000, 900 + i)
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {
                "dtype": "float32",
                "paged_cache_memory_mb": 256,
                "persist_paged_cache": True,
                "cold_cache_dir": folder,
            }
            with neve.load(CHECKPOINTS / family, **options) as model:
                model.wait_identified()
                model.generate(_ids(64, 1), max_tokens=2)
                first = model.generate(ids, max_tokens=4, ignore_eos=True)
                model.flush(60)
                next_turn = [*ids, *first.tokens, *_ids(16, 800 + i)]
                cold.append(first.timings.ttft_ms)
                warm.append(model.generate(next_turn, max_tokens=1).timings.ttft_ms)
            with neve.load(CHECKPOINTS / family, **options) as model:
                model.wait_identified()
                model.generate(_ids(64, 2), max_tokens=2)
                restored.append(model.generate(next_turn, max_tokens=1).timings.ttft_ms)
    return [
        _sooner(f"{family}: next turn of 2,000 tokens", warm, cold, 10.0),
        _sooner(f"{family}: the same after a restart", restored, cold, 5.0),
    ]


def _sooner(name: str, ours: list[float], cold: list[float], at_least: float) -> Figure:
    fast, slow = statistics.median(ours), statistics.median(cold)
    detail = f"{fast:.1f} ms against {slow:.1f} ms"
    return Figure(
        name, slow / fast, "x", f">= {at_least:g}x sooner", slow / fast >= at_least, detail
    )
