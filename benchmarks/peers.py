"""Against mlx-lm on SmolLM2-135M, float32, the same BLAS, one process."""

from __future__ import annotations

from .figures import Figure, bounded, interleaved, random_tokens, ratio, seconds
from .subjects import batch_ours, batch_theirs, run_ours, run_theirs

NEW_TOKENS = 48
SUFFIXES = (20, 60, 120, 200, 300, 450, 600, 700)


def decode() -> list[Figure]:
    """Decode of one request."""
    ours, theirs = interleaved(
        [
            lambda i: run_ours(random_tokens(64, i), NEW_TOKENS).decode,
            lambda i: run_theirs(random_tokens(64, i), NEW_TOKENS).decode,
        ],
        5,
    )
    return [ratio("decode, one request", ours, theirs, 1.0, "tokens/s")]


def prefill() -> list[Figure]:
    """Prefill of one request, by the time to its first token."""
    length = 512
    ours, theirs = interleaved(
        [
            lambda i: length / run_ours(random_tokens(length, 100 + i), 1).ttft,
            lambda i: length / run_theirs(random_tokens(length, 100 + i), 1).ttft,
        ],
        5,
    )
    return [ratio("prefill, 512 tokens", ours, theirs, 1.0, "tokens/s")]


def batch() -> list[Figure]:
    """Eight unrelated requests of 128 tokens each, end to end."""

    def prompts(i: int) -> list[list[int]]:
        return [random_tokens(128, 1000 + 10 * i + j) for j in range(8)]

    total = 8 * NEW_TOKENS
    ours, theirs = interleaved(
        [
            lambda i: total / seconds(lambda: batch_ours(prompts(i), NEW_TOKENS)),
            lambda i: total / seconds(lambda: batch_theirs(prompts(i), NEW_TOKENS)),
        ],
        3,
    )
    return [ratio("8 unrelated requests, end to end", ours, theirs, 1.0, "tokens/s")]


def shared() -> list[Figure]:
    """Eight requests of mixed lengths behind one system prompt, end to end."""

    def prompts(i: int) -> list[list[int]]:
        system = random_tokens(512, 5000 + i)
        return [system + random_tokens(length, 6000 + 10 * i + length) for length in SUFFIXES]

    total = 8 * 32
    ours, theirs = interleaved(
        [
            lambda i: total / seconds(lambda: batch_ours(prompts(i), 32)),
            lambda i: total / seconds(lambda: batch_theirs(prompts(i), 32)),
        ],
        1,
    )
    return [ratio("8 mixed requests, 512 shared", ours, theirs, 2.0, "tokens/s")]


def prefix() -> list[Figure]:
    """A prefix of 1,000 tokens that an earlier request had: time to first token, and decode."""

    def cold(i: int) -> float:
        return run_ours(random_tokens(1000, 7000 + i) + random_tokens(8, i), 1).ttft

    def warm(i: int) -> float:
        return run_ours(random_tokens(1000, 7000 + i) + random_tokens(8, 50 + i), 1).ttft

    first, again = interleaved([cold, warm], 3)
    detail = f"{again * 1e3:.0f} ms warm, {first * 1e3:.0f} ms cold"
    return [
        bounded("time to first token, warm/cold", again / first, 1 / 15, "x", detail),
        *_decode_after_hit(),
    ]


def _decode_after_hit() -> list[Figure]:
    def prompt(i: int) -> list[int]:
        return random_tokens(600, 8000 + i)

    cold, hit = interleaved(
        [
            lambda i: run_ours(prompt(i), NEW_TOKENS).decode,
            lambda i: run_ours(prompt(i), NEW_TOKENS).decode,
        ],
        5,
    )
    return [ratio("decode after a hit/after a cold prefill", hit, cold, 0.95, "tokens/s")]
