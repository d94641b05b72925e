"""Token ids to text, as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS = 4  # a character has at most 4 bytes, and a token at least one
_WINDOW_TOKENS = 16


class Detokenizer:
    """Turns one sequence's tokens into text, a piece a token.

    What was given out never changes afterwards: a character that still lacks bytes is held
    back, and the pieces joined equal `Tokenizer.decode` of all ids. A token costs O(1)
    amortised: only a short window of last tokens is decoded, and its first few give the
    context on which a leading space depends.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset[int]()
        self._window: list[int] = []
        self._num_sent = 0  # characters of the decoded window that were given out

    def add(self, token_id: int) -> str:
        """Take the next token; return the text that is now certain, often empty."""
        if token_id in self._skipped or self._tokenizer.token_text(token_id) is None:
            return ""
        self._window.append(token_id)
        # A run of byte tokens is text only if all of it is valid, so its end has to be seen.
        if token_id in self._tokenizer.byte_token_ids:
            return ""
        certain = _certain(self._decode())
        piece = certain[self._num_sent :]
        self._num_sent = len(certain)
        if len(self._window) > _WINDOW_TOKENS:
            self._shorten()
        return piece

    def finish(self) -> str:
        """Return the rest, now that no more tokens come; an unfinished character is U+FFFD."""
        return self._decode()[self._num_sent :]

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)

    def _shorten(self) -> None:
        """Keep the last tokens, whose text ends as the window's does, unsent part included.

        They hold every byte of an unfinished character. If they begin inside another one,
        their decoded beginning is garbage, but already counted as sent.
        """
        self._window = self._window[-_CONTEXT_TOKENS:]
        self._num_sent = len(_certain(self._decode()))


def _certain(text: str) -> str:
    """`text` without what the next bytes might change: they can only complete its last mark."""
    return text.removesuffix(_REPLACEMENT)
