"""What the sampler keeps of one request from step to step."""

from __future__ import annotations

import hashlib
import secrets
import struct
from typing import TYPE_CHECKING

import attrs
import mlx.core as mx

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .params import SamplingParams


@attrs.frozen(eq=False)
class TokenHistory:
    """The tokens that came before, as far as penalties ask.

    Attributes:
        in_prompt: `[V]` bool, the tokens of the prompt.
        output_counts: `[V]` int32, how often each was generated; may be unevaluated.
    """

    in_prompt: mx.array
    output_counts: mx.array

    @classmethod
    def of(
        cls, vocab_size: int, prompt_tokens: Iterable[int], output_tokens: Iterable[int]
    ) -> TokenHistory:
        """Count the tokens of a prompt and of what was generated after it."""

        def count(tokens: Iterable[int]) -> mx.array:
            index = mx.array(list(tokens), dtype=mx.int32)
            return mx.zeros(vocab_size, dtype=mx.int32).at[index].add(1)

        return cls(count(prompt_tokens) > 0, count(output_tokens))

    def after(self, token: mx.array) -> TokenHistory:
        """Return the history with one more generated token, `[1]`, evaluated or not."""
        return attrs.evolve(self, output_counts=self.output_counts.at[token].add(1))


@attrs.define(eq=False)
class RowState:
    """The sampling side of one request; the engine thread owns it.

    Attributes:
        params: What the request asked for.
        seed: The seed of its draws, 64 bits.
        num_sampled: Tokens sampled so far, which is the index of the next draw.
        history: What penalties need; None without penalties.
    """

    params: SamplingParams
    seed: int
    num_sampled: int
    history: TokenHistory | None

    @classmethod
    def create(
        cls,
        params: SamplingParams,
        *,
        vocab_size: int,
        prompt_tokens: Sequence[int],
        output_tokens: Sequence[int] = (),
    ) -> RowState:
        """Prepare a request for sampling.

        Args:
            params: What the request asks for.
            vocab_size: Width of the logits.
            prompt_tokens: The prompt's token ids.
            output_tokens: Tokens generated before; the draws go on after them.

        Raises:
            InvalidSamplingError: `logit_bias` names a token that the vocabulary lacks.
        """
        params.check_vocabulary(vocab_size)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        history = None
        if params.penalised:
            history = TokenHistory.of(vocab_size, prompt_tokens, output_tokens)
        return cls(params, seed, len(output_tokens), history)

    def draw_key(self) -> tuple[int, int]:
        """Return the random key of the next draw, a function of seed and index alone."""
        draw = struct.pack("<QQ", self.seed, self.num_sampled)
        first, second = struct.unpack("<II", hashlib.blake2b(draw, digest_size=8).digest())
        return first, second

    def advance(self, tokens: mx.array, row: int) -> None:
        """Take note that `tokens [R]` holds this request's next token at index `row`."""
        self.num_sampled += 1
        if self.history is not None:
            self.history = self.history.after(tokens[row : row + 1])
