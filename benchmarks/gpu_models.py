"""On a GPU: random weights in the shapes of Qwen3-0.6B and Qwen3-8B, against mlx-lm.

Both engines run on the same back end of MLX, in bfloat16, one after the other in turns.
"""

from __future__ import annotations

import gc
import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
from mlx.utils import tree_flatten

import neve

from .figures import Figure, interleaved, ratio
from .hybrids import CHECKPOINTS, ids_of

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "0.6B": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "intermediate_size": 12_288,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}
_COMMON = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
}
NEW_TOKENS = 64
TARGETS = {"0.6B": (1.8, 2.0), "8B": (1.2, 1.5)}
SHARD_BYTES = 4 << 30
POOL_MIB = 12 * 1024
"""Holds 32 rows of either shape; mlx-lm needs most of the rest of 141 GB for their prompts."""


def write_checkpoint(shape: str, path: Path) -> None:
    """Write a Qwen3 checkpoint of random bfloat16 weights to `path`."""
    from mlx_lm.models import qwen3

    for file in (CHECKPOINTS / "qwen3").glob("*token*.json"):
        shutil.copy(file, path)
    config = json.loads((CHECKPOINTS / "qwen3" / "config.json").read_text())
    config |= {**_COMMON, **SHAPES[shape]}
    config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    config["rope_theta"] = config["rope_parameters"]["rope_theta"]
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    parameters: Any = tree_flatten(qwen3.Model(qwen3.ModelArgs.from_dict(config)).parameters())
    mx.random.seed(0)
    shard: dict[str, mx.array] = {}
    files: dict[str, str] = {}
    for i, (name, array) in enumerate(parameters):
        shard[name] = _random(name, array.shape)
        if i == len(parameters) - 1 or sum(x.nbytes for x in shard.values()) > SHARD_BYTES:
            file = f"model-{i:05}.safetensors"
            mx.save_safetensors(str(path / file), shard, {"format": "mlx"})
            files |= dict.fromkeys(shard, file)
            shard = {}
    index = json.dumps({"metadata": {}, "weight_map": files})
    (path / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def _random(name: str, shape: tuple[int, ...]) -> mx.array:
    if len(shape) == 1 and name.endswith(".weight"):
        return mx.ones(shape, mx.bfloat16)
    return (mx.random.normal(shape) * 0.02).astype(mx.bfloat16)


@attrs.frozen(eq=False)
class GpuPair:
    """One checkpoint in both engines.

    Attributes:
        ours: The model here.
        theirs: The module of mlx-lm.
    """

    ours: neve.Model
    theirs: Any

    @classmethod
    def load(cls, path: Path) -> GpuPair:
        """Load `path` twice."""
        from mlx_lm.utils import load_model

        theirs, _ = load_model(path)
        mx.eval(theirs.parameters())
        ours = neve.load(path, paged_cache_memory_mb=POOL_MIB, persist_paged_cache=False)
        return cls(ours, theirs)

    def ours_decodes(self, prompts: list[list[int]]) -> float:
        """Return tokens a second of rows that decode together, here; their prompts are hot."""
        self._submit(prompts, 1)
        done = self._submit(prompts, NEW_TOKENS)
        seconds = [(c.timings.total_ms - c.timings.ttft_ms) / 1e3 for c in done]
        return len(prompts) * (NEW_TOKENS - 1) / statistics.median(seconds)

    def _submit(self, prompts: list[list[int]], max_tokens: int) -> list[Any]:
        handles = [
            self.ours.submit(ids, max_tokens=max_tokens, ignore_eos=True) for ids in prompts
        ]
        return [handle.result() for handle in handles]

    def theirs_decodes(self, prompts: list[list[int]]) -> float:
        """Return the same, there."""
        mx.clear_cache()  # what is kept for reuse here is missing there
        if len(prompts) == 1:
            return self._theirs_alone(prompts[0])[1]
        from mlx_lm.generate import BatchGenerator

        width = len(prompts)
        generator = BatchGenerator(
            self.theirs, completion_batch_size=width, prefill_batch_size=width
        )
        generator.insert(prompts, [NEW_TOKENS] * width)
        stamps: list[float] = []
        finished = 0
        while finished < width:
            responses = generator.next_generated()
            stamps.append(time.perf_counter())
            finished += sum(response.finish_reason is not None for response in responses)
        generator.close()
        steps = [b - a for a, b in itertools.pairwise(stamps)]
        return width / statistics.median(steps[-NEW_TOKENS // 2 :])

    def _theirs_alone(
        self, ids: list[int], max_tokens: int = NEW_TOKENS
    ) -> tuple[float, float]:
        from mlx_lm.generate import generate_step

        stamps = [time.perf_counter()]
        for _ in generate_step(mx.array(ids), self.theirs, max_tokens=max_tokens):
            stamps.append(time.perf_counter())
        return stamps[1] - stamps[0], (max_tokens - 1) / (stamps[-1] - stamps[1])

    def ours_share(self, prompts: list[list[int]]) -> float:
        """Return tokens a second of prompts behind one prefix, end to end, here."""
        start = time.perf_counter()
        self._submit(prompts, NEW_TOKENS)
        return len(prompts) * NEW_TOKENS / (time.perf_counter() - start)

    def theirs_in_turn(self, prompts: list[list[int]]) -> float:
        """Return the same, there, one prompt after the other."""
        start = time.perf_counter()
        for ids in prompts:
            self._theirs_alone(ids)
        return len(prompts) * NEW_TOKENS / (time.perf_counter() - start)


def _decode(name: str, pair: GpuPair, rows: int, length: int, target: float) -> Figure:
    def prompts(i: int) -> list[list[int]]:
        return [ids_of(length, 1000 * i + row) for row in range(rows)]

    sides: list[Callable[[int], float]] = [
        lambda i: pair.ours_decodes(prompts(i)),
        lambda i: pair.theirs_decodes(prompts(i)),
    ]
    ours, theirs = interleaved(sides, 3 if rows > 1 else 7)
    return ratio(f"{name}, {rows} x {length}: decode", ours, theirs, target, "tokens/s")


def _shared(name: str, pair: GpuPair) -> Figure:
    def prompts(i: int) -> list[list[int]]:
        prefix = ids_of(8192, 77 + i)
        return [prefix + ids_of(64, 9000 + 10 * i + row) for row in range(8)]

    sides: list[Callable[[int], float]] = [
        lambda i: pair.ours_share(prompts(i)),
        lambda i: pair.theirs_in_turn(prompts(i)),
    ]
    ours, theirs = interleaved(sides, 2)
    return ratio(f"{name}, 8 behind 8,192 shared tokens", ours, theirs, 4.0, "tokens/s")


def gpu_models() -> Generator[Figure]:
    """Decode of one row and of 32, and eight requests behind one prefix."""
    for shape in SHAPES:
        yield from _shape(shape)
        gc.collect()
        mx.clear_cache()


def _shape(shape: str) -> Generator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(shape, Path(folder))
        pair = GpuPair.load(Path(folder))
        one, many = TARGETS[shape]
        name = f"Qwen3-{shape}"
        try:
            yield _decode(name, pair, 1, 128, one)
            yield _decode(name, pair, 32, 2048, many)
            if shape == "0.6B":
                yield _shared(name, pair)
        finally:
            pair.ours.close()
