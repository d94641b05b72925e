"""The output of a request: from sampled tokens to text, with the stop rules."""

from __future__ import annotations

from ..sampling.params import SamplingParams
from ..text.detokenizer import Detokenizer
from ..text.stop_sequences import StopMatcher
from ..text.tokenizer import Tokenizer
from .completion import FinishReason, Piece, TokenLogprob


class RequestOutput:
    """Collects one request's answer.

    Attributes:
        tokens: Every sampled token.
        text: The final text so far, without text that may become a stop string.
        finish_reason: Why the request ended; None while the request runs.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
        params: SamplingParams,
        max_tokens: int,
    ) -> None:
        """Make an empty answer.

        Args:
            tokenizer: The model's tokenizer.
            eos_token_ids: Tokens that end the answer.
            params: Stop strings, and whether end-of-sequence tokens are ignored.
            max_tokens: Number of tokens after which the request ends with `length`.
        """
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._max_tokens = max_tokens
        self._eos = frozenset() if params.ignore_eos else eos_token_ids
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(params.stop) if params.stop else None

    def add(self, token: int, logprob: TokenLogprob | None = None) -> Piece:
        """Add one token and return the new piece."""
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if token in self._eos:
            text = self._end("stop")
        else:
            text = self._certain(self._detokenizer.add(token))
            if self.finish_reason is None and len(self.tokens) >= self._max_tokens:
                text += self._end("length")
        self.text += text
        return Piece(text, (token,), () if logprob is None else (logprob,))

    def _certain(self, text: str) -> str:
        if self._matcher is None:
            return text
        text = self._matcher.add(text)
        if self._matcher.stopped:
            self.finish_reason = "stop"
        return text

    def _end(self, reason: FinishReason) -> str:
        """Flush the text that was held back; the flushed text may contain a stop string."""
        text = self._certain(self._detokenizer.finish())
        if self.finish_reason is None:
            self.finish_reason = reason
            if self._matcher is not None:
                text += self._matcher.finish()
        return text
