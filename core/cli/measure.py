"""What `neve bench` measures."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from ..errors import RequestError
from .output import decode_rate

if TYPE_CHECKING:
    from ..engine.completion import Completion
    from ..model import Model

_SHORT_PROMPT = 16
_NEW_SUFFIX = 8

STAGES = 4
"""Stages of a round: an unseen prompt, a known prefix, one request, all requests."""


@attrs.frozen(kw_only=True)
class Workload:
    """What is run.

    Attributes:
        prompt_tokens: Length of the prompts that measure prefill and prefix hits.
        new_tokens: Tokens of an answer.
        requests: Requests that run at once.
    """

    prompt_tokens: int
    new_tokens: int
    requests: int


@attrs.frozen(kw_only=True)
class Speeds:
    """One round's figures, or their medians.

    Attributes:
        prefill_tokens_per_s: Of a prompt that nobody has seen, by its time to first token.
        decode_tokens_per_s: Of one request alone.
        batch_tokens_per_s: Of all requests at once, together.
        cold_ttft_ms: To the first token of the unseen prompt.
        warm_ttft_ms: To the first token of a prompt that differs in its last tokens only.
    """

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    batch_tokens_per_s: float
    cold_ttft_ms: float
    warm_ttft_ms: float

    @property
    def batch_speedup(self) -> float:
        """How many times faster than one request all of them are together."""
        return self.batch_tokens_per_s / self.decode_tokens_per_s

    @property
    def prefix_speedup(self) -> float:
        """How many times sooner the first token comes behind a known prefix."""
        return self.cold_ttft_ms / self.warm_ttft_ms


_FIGURES = [field.name for field in attrs.fields(Speeds)]


def medians(rounds: Sequence[Speeds]) -> Speeds:
    """Return the median of each figure."""
    columns = zip(*map(attrs.astuple, rounds), strict=True)
    return Speeds(**dict(zip(_FIGURES, map(statistics.median, columns), strict=True)))


def check_workload(model: Model, workload: Workload) -> None:
    """Refuse a workload that the model cannot run to its end, before a prompt is made.

    Raises:
        RequestError: It is longer than the model's context, or than its cache.
    """
    info = model.info
    most = min(info.max_context, info.effective_window_tokens)
    bound = "context" if info.max_context == most else "cache"
    needs = {
        "prompt_tokens": workload.prompt_tokens + 1,
        "new_tokens": _SHORT_PROMPT + workload.new_tokens,
    }
    for name, num_tokens in needs.items():
        if num_tokens > most:
            spare = num_tokens - getattr(workload, name)
            raise RequestError(
                f"--{name.replace('_', '-')} is {getattr(workload, name)}, but the model's "
                f"{bound} holds {most} tokens: at most {most - spare} are possible",
                code="context_length_exceeded",
                param=name,
            )


def run_round(
    model: Model,
    workload: Workload,
    source: random.Random,
    advance: Callable[[], None] = lambda: None,
) -> Speeds:
    """Run the workload once, on prompts that nobody has seen.

    Args:
        model: The model that is measured.
        workload: What is run.
        source: Of the prompts.
        advance: Is called after each of the `STAGES` stages.

    Raises:
        ContextLengthExceededError: The model cannot take a prompt this long.
    """

    def tokens(count: int) -> list[int]:
        return [source.randrange(model.info.vocab_size) for _ in range(count)]

    prefix = tokens(workload.prompt_tokens - _NEW_SUFFIX)
    cold = _run(model, prefix + tokens(_NEW_SUFFIX), 1).timings.ttft_ms
    advance()
    warm = _run(model, prefix + tokens(_NEW_SUFFIX), 1).timings.ttft_ms
    advance()
    alone = decode_rate(_run(model, tokens(_SHORT_PROMPT), workload.new_tokens))
    advance()
    prompts = [tokens(_SHORT_PROMPT) for _ in range(workload.requests)]
    assert alone is not None
    together = _batch_rate(model, prompts, workload.new_tokens)
    advance()
    return Speeds(
        prefill_tokens_per_s=workload.prompt_tokens / cold * 1e3,
        decode_tokens_per_s=alone,
        batch_tokens_per_s=together,
        cold_ttft_ms=cold,
        warm_ttft_ms=warm,
    )


def _run(model: Model, prompt: list[int], new_tokens: int) -> Completion:
    return model.generate(prompt, max_tokens=new_tokens, ignore_eos=True)


def _batch_rate(model: Model, prompts: Sequence[list[int]], new_tokens: int) -> float:
    """Return tokens a second of all requests together, from the first token on."""
    start = time.perf_counter()
    handles = [model.submit(p, max_tokens=new_tokens, ignore_eos=True) for p in prompts]
    first_ms = min(handle.result().timings.ttft_ms for handle in handles)
    decode_s = time.perf_counter() - start - first_ms / 1e3
    return len(prompts) * (new_tokens - 1) / decode_s
