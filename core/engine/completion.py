"""What a request gives back."""

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
        cached_tokens: Prompt tokens whose state came from the cache, memory or disk.
        restored_tokens: Those of them that came from disk.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    restored_tokens: int = 0


@attrs.frozen
class CacheReport:
    """Where the prompt's prefix came from.

    Attributes:
        hot_tokens: Prompt tokens found in memory.
        restored_tokens: Prompt tokens that came from disk.
        computed_tokens: Prompt tokens that were computed, at first admission.
        miss: Why not more was found; None when only the rest of the last block and the last
            token, which always is computed, were left. One of

            - `no_block`: the next block is neither in memory nor on disk,
            - `no_state`: blocks are in memory, but not the state that belongs to them,
            - `no_sidecar`: blocks are in memory or on disk, but the state that belongs to them
              is in neither,
            - `checksum`, `format`, `layout`: the next block on disk was unsound and is
              removed,
            - `fingerprint`: it was not known yet which model it is, or the block on disk
              was another model's,
            - `salt`: nothing is on disk under this request's salt,
            - `budget`: an earlier request ran out of its capture budget there,
            - `quota`: the store had refused to take more,
            - `declined`: to restore would have taken longer than to compute,
            - `no_cache`: the flat path keeps nothing.
        preemptions: How often the request lost its blocks and computed again.
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
        logprob: Its natural log-probability.
        top: The most likely tokens with theirs, best first, as many as were asked for.
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
    """A part of an answer, as it becomes certain.

    Attributes:
        text: New text; may be empty while a character or a stop string is undecided.
        tokens: New token ids.
        logprobs: One entry a token if they were asked for.
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
        cache_report: Where the prompt's prefix came from.
        timings: Wall-clock times.
        logprobs: One entry a token if they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    cache_report: CacheReport
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()
