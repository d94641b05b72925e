"""Whether memory stays where it is over many requests."""

from __future__ import annotations

import random
from pathlib import Path

import neve

from .figures import Figure, bounded

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "qwen3"
REQUESTS = 500


def soak() -> list[Figure]:
    """500 mixed requests on the tiny Qwen3: active memory after 100 and after all."""
    source = random.Random(0)
    with neve.load(CHECKPOINT, paged_cache_memory_mb=64) as model:
        active: list[int] = []
        for _ in range(REQUESTS // 20):
            handles = [
                model.submit(
                    [source.randrange(10, 4000) for _ in range(source.randrange(1, 300))],
                    max_tokens=source.randrange(1, 24),
                    temperature=source.choice([0.0, 0.8]),
                    top_p=source.choice([1.0, 0.9]),
                    repetition_penalty=source.choice([1.0, 1.1]),
                )
                for _ in range(20)
            ]
            for handle in handles:
                handle.result()
            active.append(model.stats().memory["active"])
    growth = (active[-1] - active[4]) / 2**20
    return [bounded("active memory, requests 100 to 500", growth, 1, "MiB")]
