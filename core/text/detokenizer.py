"""Streaming conversion of token ids to text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS = 4  # a character has at most 4 bytes, and a token at least one
_WINDOW_TOKENS = 16


class Detokenizer:
    """Turns one sequence's tokens into text, one piece for each token.

    Returned text never changes later: a character with missing bytes is held back, and the
    joined pieces equal `Tokenizer.decode` of all ids. A token costs amortised O(1): only a
    short window of the last tokens is decoded. The first few tokens of the window are context,
    on which a leading space depends.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset[int]()
        self._window: list[int] = []
        self._num_sent = 0  # characters of the decoded window that were returned

    def add(self, token_id: int) -> str:
        """Take the next token; return the text that is final by now, often empty."""
        if token_id in self._skipped or self._tokenizer.token_text(token_id) is None:
            return ""
        self._window.append(token_id)
        # Byte tokens decode to text only if their whole run is valid UTF-8: await its end.
        if token_id in self._tokenizer.byte_token_ids:
            return ""
        certain = _certain(self._decode())
        piece = certain[self._num_sent :]
        self._num_sent = len(certain)
        if len(self._window) > _WINDOW_TOKENS:
            self._shorten()
        return piece

    def finish(self) -> str:
        """Return the remaining text at the end; an unfinished character becomes U+FFFD."""
        return self._decode()[self._num_sent :]

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)

    def _shorten(self) -> None:
        """Cut the window to its last tokens, whose text has the same end and unsent part.

        The last tokens contain every byte of an unfinished character. If they begin inside
        another character, their first decoded characters are wrong, but count as sent.
        """
        self._window = self._window[-_CONTEXT_TOKENS:]
        self._num_sent = len(_certain(self._decode()))


def _certain(text: str) -> str:
    """Return `text` without a final U+FFFD, which later bytes may still complete."""
    return text.removesuffix(_REPLACEMENT)
