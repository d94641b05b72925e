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

    def after(self, tokens: mx.array) -> TokenHistory:
        """Return the history with more generated tokens `[n]` int32, evaluated or not."""
        return attrs.evolve(self, output_counts=self.output_counts.at[tokens].add(1))


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

    def accept(self, tokens: mx.array, first: int = 0, count: int = 1) -> None:
        """Move on by tokens that are the request's next ones.

        Args:
            tokens: `[R]` int32, evaluated or not.
            first: Index of the request's first token among them.
            count: How many of them are the request's.
        """
        self.num_sampled += count
        if self.history is not None:
            self.history = self.history.after(tokens[first : first + count])


@attrs.frozen(eq=False)
class Draw:
    """One position of a request whose token is to be drawn; drawing changes nothing.

    The random stream of a request is a function of its seed and the index of a token, so a
    position gets the same token whether it is decoded or verified.

    Attributes:
        state: The request's state; its newest accepted token is the last known one.
        drafts: Tokens that are assumed between that token and the position.
    """

    state: RowState
    drafts: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        """The request's parameters."""
        return self.state.params

    @property
    def history(self) -> TokenHistory | None:
        """The tokens before the position, as far as penalties ask."""
        history = self.state.history
        if history is None or not self.drafts:
            return history
        return history.after(mx.array(self.drafts, mx.int32))

    def key(self) -> tuple[int, int]:
        """Return the random key of the position, a function of seed and index alone."""
        index = self.state.num_sampled + len(self.drafts)
        draw = struct.pack("<QQ", self.state.seed, index)
        first, second = struct.unpack("<II", hashlib.blake2b(draw, digest_size=8).digest())
        return first, second
