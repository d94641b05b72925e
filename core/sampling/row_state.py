"""The sampling state of a request."""

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
    """The earlier tokens of a request, for penalties.

    Attributes:
        in_prompt: `[V]` bool, whether the prompt contains the token.
        output_counts: `[V]` int32, how often the token was generated; may be unevaluated.
    """

    in_prompt: mx.array
    output_counts: mx.array

    @classmethod
    def of(
        cls, vocab_size: int, prompt_tokens: Iterable[int], output_tokens: Iterable[int]
    ) -> TokenHistory:
        """Count the tokens of a prompt and of an output."""

        def count(tokens: Iterable[int]) -> mx.array:
            index = mx.array(list(tokens), dtype=mx.int32)
            return mx.zeros(vocab_size, dtype=mx.int32).at[index].add(1)

        return cls(count(prompt_tokens) > 0, count(output_tokens))

    def after(self, tokens: mx.array) -> TokenHistory:
        """Return the history with more generated tokens `[n]` int32, evaluated or not."""
        return attrs.evolve(self, output_counts=self.output_counts.at[tokens].add(1))


@attrs.define(eq=False)
class RowState:
    """The sampling state of one request. Owned by the engine thread.

    Attributes:
        params: The request's sampling parameters.
        seed: The 64-bit seed of the request's random stream.
        num_sampled: Number of accepted tokens, which is the index of the next draw.
        history: Earlier tokens; None without penalties.
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
        """Make the sampling state of a request.

        Args:
            params: The request's sampling parameters.
            vocab_size: Width of the logits.
            prompt_tokens: The prompt's token ids.
            output_tokens: Tokens generated before; the random stream continues after them.

        Raises:
            InvalidSamplingError: `logit_bias` has a token id beyond the vocabulary.
        """
        params.check_vocabulary(vocab_size)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        history = None
        if params.penalised:
            history = TokenHistory.of(vocab_size, prompt_tokens, output_tokens)
        return cls(params, seed, len(output_tokens), history)

    def accept(self, tokens: mx.array, first: int = 0, count: int = 1) -> None:
        """Advance the state by the request's next tokens.

        Args:
            tokens: `[R]` int32, evaluated or not.
            first: Index of the request's first token in `tokens`.
            count: Number of tokens of the request.
        """
        self.num_sampled += count
        if self.history is not None:
            self.history = self.history.after(tokens[first : first + count])


@attrs.frozen(eq=False)
class Draw:
    """One position of a request at which a token is drawn. A draw changes no state.

    The random key of a draw is a function of the request's seed and the token's index. Decode
    and verification therefore draw the same token at a position.

    Attributes:
        state: The request's sampling state after its last known token.
        drafts: Drafts between the last known token and the draw.
    """

    state: RowState
    drafts: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        """The request's parameters."""
        return self.state.params

    @property
    def history(self) -> TokenHistory | None:
        """The tokens before the position; None without penalties."""
        history = self.state.history
        if history is None or not self.drafts:
            return history
        return history.after(mx.array(self.drafts, mx.int32))

    def key(self) -> tuple[int, int]:
        """Return the random key of the position, a function of seed and index only."""
        index = self.state.num_sampled + len(self.drafts)
        draw = struct.pack("<QQ", self.state.seed, index)
        first, second = struct.unpack("<II", hashlib.blake2b(draw, digest_size=8).digest())
        return first, second
