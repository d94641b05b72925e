"""Recurrent hybrids against mlx-lm on the tiny checkpoints, and what reuse is worth to them."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx

import neve
from neve.layers.gated_delta import gated_delta

from .figures import Figure, bounded, interleaved, random_tokens, ratio, seconds

FAMILIES = ("lfm2", "qwen3_5", "nemotron_h")
CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
VOCABULARY = 1000
SUFFIXES = (20, 60, 120, 200, 300, 450, 600, 700)


def ids_of(count: int, seed: int) -> list[int]:
    """Return token ids below `VOCABULARY` that no two seeds share."""
    return [token % VOCABULARY for token in random_tokens(count, seed)]


@attrs.frozen(eq=False)
class Pair:
    """One checkpoint in both engines, in float32.

    Attributes:
        ours: The model here.
        theirs: The module of mlx-lm.
    """

    ours: neve.Model
    theirs: Any

    @classmethod
    def load(cls, path: Path, *, pool_mb: int = 256) -> Pair:
        """Load `path` twice; the pools here take `pool_mb` MiB."""
        from mlx_lm.utils import load_model

        theirs, _ = load_model(path)
        theirs.set_dtype(mx.float32)
        mx.eval(theirs.parameters())
        ours = neve.load(path, dtype="float32", paged_cache_memory_mb=pool_mb)
        return cls(ours, theirs)

    def ours_at_once(self, prompts: list[list[int]], max_tokens: int) -> None:
        """Answer all prompts in one batch, here."""
        handles = [
            self.ours.submit(ids, max_tokens=max_tokens, ignore_eos=True) for ids in prompts
        ]
        for handle in handles:
            handle.result()

    def theirs_at_once(self, prompts: list[list[int]], max_tokens: int) -> None:
        """Answer all prompts in one batch, there."""
        from mlx_lm.generate import BatchGenerator

        width = len(prompts)
        generator = BatchGenerator(
            self.theirs, completion_batch_size=width, prefill_batch_size=width
        )
        generator.insert(prompts, [max_tokens] * width)
        finished = 0
        while finished < width:
            responses = generator.next_generated()
            finished += sum(response.finish_reason is not None for response in responses)
        generator.close()

    def ours_one(self, ids: list[int], max_tokens: int) -> tuple[float, float]:
        """Return seconds to the first token, and tokens a second after it, here."""
        times = self.ours.generate(ids, max_tokens=max_tokens, ignore_eos=True).timings
        rest = (times.total_ms - times.ttft_ms) / 1e3
        return times.ttft_ms / 1e3, (max_tokens - 1) / rest if rest else 0.0

    def theirs_one(self, ids: list[int], max_tokens: int) -> tuple[float, float]:
        """Return the same two, there."""
        from mlx_lm.generate import generate_step

        start, stamps = time.perf_counter(), []
        for _ in generate_step(mx.array(ids), self.theirs, max_tokens=max_tokens):
            stamps.append(time.perf_counter())
        rest = stamps[-1] - stamps[0]
        return stamps[0] - start, (max_tokens - 1) / rest if rest else 0.0


def ratios(name: str, pair: Pair, *, max_tokens: int = 48) -> list[Figure]:
    """Return decode of one request, prefill of 512 tokens, and eight equal requests."""

    def equal(i: int) -> list[list[int]]:
        return [ids_of(128, 1000 + 10 * i + j) for j in range(8)]

    decode = interleaved(
        [
            lambda i: pair.ours_one(ids_of(64, i), max_tokens)[1],
            lambda i: pair.theirs_one(ids_of(64, i), max_tokens)[1],
        ],
        5,
    )
    prefill = interleaved(
        [
            lambda i: 512 / pair.ours_one(ids_of(512, 100 + i), 1)[0],
            lambda i: 512 / pair.theirs_one(ids_of(512, 100 + i), 1)[0],
        ],
        5,
    )
    total = 8 * max_tokens
    rows = interleaved(
        [
            lambda i: total / seconds(lambda: pair.ours_at_once(equal(i), max_tokens)),
            lambda i: total / seconds(lambda: pair.theirs_at_once(equal(i), max_tokens)),
        ],
        3,
    )
    unit = "tokens/s"
    return [
        ratio(f"{name}: decode, one request", *decode, 1.0, unit),
        ratio(f"{name}: prefill, 512 tokens", *prefill, 1.0, unit),
        ratio(f"{name}: 8 equal requests", *rows, 1.0, unit),
    ]


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
    pair = Pair.load(CHECKPOINTS / family)

    def mixed(i: int) -> list[list[int]]:
        shared = ids_of(512, 5000 + i)
        return [shared + ids_of(length, 6000 + 10 * i + length) for length in SUFFIXES]

    figures = ratios(family, pair)
    behind = interleaved(
        [
            lambda i: 8 * 32 / seconds(lambda: pair.ours_at_once(mixed(i), 32)),
            lambda i: 8 * 32 / seconds(lambda: pair.theirs_at_once(mixed(i), 32)),
        ],
        1,
    )
    pair.ours.close()
    return [
        *figures,
        ratio(f"{family}: 8 mixed requests, 512 shared", *behind, 2.0, "tokens/s"),
        *_reuse(family),
    ]


def _reuse(family: str) -> list[Figure]:
    """A conversation of 2,000 tokens: its next turn, in the same process and in a new one."""
    cold: list[float] = []
    warm: list[float] = []
    restored: list[float] = []
    for i in range(3):
        ids = ids_of(2000, 900 + i)
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {
                "dtype": "float32",
                "paged_cache_memory_mb": 256,
                "persist_paged_cache": True,
                "cold_cache_dir": folder,
            }
            with neve.load(CHECKPOINTS / family, **options) as model:
                model.wait_identified()
                model.generate(ids_of(64, 1), max_tokens=2)
                first = model.generate(ids, max_tokens=4, ignore_eos=True)
                model.flush(60)
                next_turn = [*ids, *first.tokens, *ids_of(16, 800 + i)]
                cold.append(first.timings.ttft_ms)
                warm.append(model.generate(next_turn, max_tokens=1).timings.ttft_ms)
            with neve.load(CHECKPOINTS / family, **options) as model:
                model.wait_identified()
                model.generate(ids_of(64, 2), max_tokens=2)
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
