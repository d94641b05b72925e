"""The result of a request."""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

FinishReason: TypeAlias = Literal["stop", "length"]


@attrs.frozen
class Usage:
    """Token counts of a request.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Sampled tokens, an end-of-sequence token included.
        cached_tokens: Prompt tokens found in the cache, in memory or on disk.
        restored_tokens: The part of `cached_tokens` that came from disk.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    restored_tokens: int = 0


@attrs.frozen
class CacheReport:
    """The sources of the prompt's prefix at first admission.

    Attributes:
        hot_tokens: Prompt tokens found in memory.
        restored_tokens: Prompt tokens restored from disk.
        computed_tokens: Other prompt tokens.
        miss: The miss cause: why the hit ended early. None if the hit has every full block
            before the last token, which is always computed. One of

            - `no_block`: the next block is neither in memory nor on disk,
            - `no_state`: the next blocks are in memory, but their snapshot or window is not,
            - `no_sidecar`: the next blocks are in memory or on disk, but their snapshot or
              window is in neither,
            - `checksum`, `format`, `layout`: the next block on disk was invalid and was
              deleted,
            - `fingerprint`: the model was not identified yet, or the block on disk belongs
              to another model,
            - `salt`: the disk has no block with the request's salt,
            - `budget`: the capture of an earlier request ended there for lack of budget,
            - `quota`: the store refused more data,
            - `declined`: a restore was predicted to take longer than recomputing,
            - `no_cache`: the flat path has no prefix cache.
        preemptions: How often the request was preempted.
    """

    hot_tokens: int
    restored_tokens: int
    computed_tokens: int
    miss: str | None
    preemptions: int


@attrs.frozen
class TokenLogprob:
    """Log-probability of a sampled token under the model's unmodified distribution.

    Attributes:
        token: The token id.
        logprob: The token's natural log-probability.
        top: The most likely tokens with their log-probabilities, best first. The request
            sets their number.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@attrs.frozen
class Timings:
    """Wall-clock times of a request, in milliseconds.

    Attributes:
        queue_ms: From submission to admission.
        ttft_ms: From submission to the first token.
        total_ms: From submission to the end.
    """

    queue_ms: float
    ttft_ms: float
    total_ms: float


@attrs.frozen
class Piece:
    """The next part of an answer.

    Attributes:
        text: New text. Empty while a character or a possible stop string is incomplete.
        tokens: New token ids.
        logprobs: One entry per token if the request asks for log-probabilities.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@attrs.frozen
class Completion:
    """A finished answer.

    Attributes:
        text: The text, without stop strings and end-of-sequence tokens.
        tokens: Every sampled token.
        finish_reason: `stop` (end of sequence or a stop string) or `length`.
        usage: Token counts.
        cache_report: The sources of the prompt's prefix.
        timings: Wall-clock times.
        logprobs: One entry per token if the request asks for log-probabilities.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    cache_report: CacheReport
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()
