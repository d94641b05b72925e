"""The cold tier on SmolLM2-135M, float32: a restart, a restore, and what both cost others."""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import neve
from neve.loading import load_for_gate

from .figures import Figure, bounded, random_tokens, ratio, seconds
from .subjects import smollm2_path

PROMPT_TOKENS = 1500
BLOCK = 16
SETTINGS: dict[str, Any] = {"dtype": "float32", "paged_cache_memory_mb": 1024}


@contextmanager
def _model(store: Path) -> Iterator[neve.Model]:
    """Open a fresh instance, as the gate does: its family is not on the list."""
    with load_for_gate(smollm2_path(), store, **SETTINGS) as model:
        model.wait_identified()
        model.generate(random_tokens(64, 1), max_tokens=4)  # the first step builds things
        model.flush()
        yield model


def _answer(model: neve.Model, ids: list[int]) -> neve.Completion:
    done = model.generate(ids, max_tokens=1)
    model.flush(60)
    return done


def restart() -> list[Figure]:
    """A prompt that an earlier process left on disk, against one that nobody computed."""
    possible = (PROMPT_TOKENS - 1) // BLOCK * BLOCK
    cold_ms: list[float] = []
    warm_ms: list[float] = []
    restored: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        for i in range(3):
            ids = random_tokens(PROMPT_TOKENS, 300 + i)
            with _model(store) as model:
                cold_ms.append(_answer(model, ids).timings.ttft_ms)
            with _model(store) as model:
                done = _answer(model, ids)
                warm_ms.append(done.timings.ttft_ms)
                restored.append(done.usage.restored_tokens)
                stats = model.stats()
                bare_s = _bare_loop(store, stats.cold.hits)
                speed = stats.cold.bytes_restored / stats.scheduler.ssd_restore_wait_ms * 1e3
                bare = stats.cold.bytes_restored / bare_s
        cold, warm = statistics.median(cold_ms), statistics.median(warm_ms)
    return [
        Figure(
            "restart: first token of a 1,500-token prompt",
            cold / warm,
            "x",
            ">= 8x sooner",
            cold / warm >= 8,
            f"{warm:.0f} ms against {cold:.0f} ms",
        ),
        Figure(
            "restored after one earlier turn",
            min(restored) / possible,
            "x",
            "= 1x",
            min(restored) == possible,
            f"{min(restored)} of {possible} tokens",
        ),
        ratio(
            "restore against reading and hashing alone", speed / 1e6, bare / 1e6, 0.75, "MB/s"
        ),
    ]


def _bare_loop(store: Path, num_blocks: int) -> float:
    """Return how long it takes to read and hash as many objects, and nothing else."""
    paths = sorted(store.rglob("*.safetensors"), key=lambda path: -path.stat().st_size)

    def loop() -> None:
        for path in paths[:num_blocks]:
            hashlib.sha256(path.read_bytes()).digest()

    return statistics.median(seconds(loop) for _ in range(3))


def capture() -> list[Figure]:
    """What writing takes from the engine thread, and from turns that decode meanwhile."""
    with tempfile.TemporaryDirectory() as folder, _model(Path(folder)) as model:
        read_ms = model._engine.call(_read_ms)
        quiet: list[float] = []
        busy: list[float] = []
        for i in range(3):
            quiet.append(_decode_rate(model, 20 + i, beside=None))
            model.flush(60)
            busy.append(_decode_rate(model, 40 + i, beside=random_tokens(1000, 60 + i)))
            model.flush(60)
    return [
        Figure("capture: a block copied for the writer", read_ms, "ms", "", True, "30 layers"),
        _slowdown("decode beside a capture", busy, quiet),
    ]


def restore_beside() -> list[Figure]:
    """What a restore takes from a turn that decodes meanwhile."""
    prompts = [random_tokens(1000, 80 + i) for i in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        with _model(Path(folder)) as model:
            for ids in prompts:
                _answer(model, ids)
        with _model(Path(folder)) as model:
            quiet = [_decode_rate(model, 90 + i, beside=None) for i in range(3)]
            model.flush(60)
            busy = [_restore_rate(model, 95 + i, ids) for i, ids in enumerate(prompts)]
    return [_slowdown("decode beside a restore", busy, quiet)]


def _slowdown(name: str, busy: list[float], quiet: list[float]) -> Figure:
    slow, fast = statistics.median(busy), statistics.median(quiet)
    detail = f"{slow:.1f} against {fast:.1f} steps/s"
    return bounded(name, 100 * (1 - slow / fast), 10.0, "% slower", detail)


def _read_ms(core: Any) -> float:
    pool = core.runner.lane.pools[0]
    return statistics.median(seconds(lambda: pool.read_blocks([1, 2])) for _ in range(20)) * 500


def _decode_rate(model: neve.Model, seed: int, *, beside: list[int] | None) -> float:
    """Return the steps a second of one request while another one's prompt is written.

    It is prefilled before the clock starts: it ends with its first token, and is written then.
    """
    with _running(model, seed):
        if beside is not None:
            model.submit(beside, max_tokens=1).result()
        return _steps_per_s(model, lambda: time.sleep(1.0))


def _restore_rate(model: neve.Model, seed: int, ids: list[int]) -> float:
    """Return the steps a second of one request while another one's prompt is restored."""
    with _running(model, seed):
        return _steps_per_s(model, lambda: model.generate(ids, max_tokens=1))


@contextmanager
def _running(model: neve.Model, seed: int) -> Iterator[None]:
    handle = model.submit(random_tokens(32, seed), max_tokens=400, ignore_eos=True)
    next(iter(handle))
    yield
    handle.cancel()


def _steps_per_s(model: neve.Model, during: Callable[[], object]) -> float:
    before, took = model.stats().scheduler.global_steps, seconds(during)
    return (model.stats().scheduler.global_steps - before) / took
