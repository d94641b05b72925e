"""A model without arrays: its next token is a function of everything before it.

A position's *content* stands for its keys and values, or for the recurrent state behind it: a
digest of the salt, of all tokens up to the position, and of the pictures that they stand for.
Two positions with equal contents may share a block, and no others may.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..contract.prompt import Prompt
from ..ids import SaltDomain


@attrs.frozen
class SimulatedModel:
    """The model.

    Attributes:
        vocab_size: Tokens are `1 … vocab_size`; a small vocabulary makes drafts right at times.
        end_token: Token that ends an answer; None for answers of full length.
    """

    vocab_size: int = 7
    end_token: int | None = None

    def root(self, salt: SaltDomain) -> int:
        """Return the content before the first token."""
        return hash((1, salt))

    def after(self, content: int, token: int, words: Sequence[int]) -> int:
        """Return the content of a position.

        Args:
            content: Content of the position before.
            token: The position's token.
            words: Identity of the picture that the token stands for; empty for text.
        """
        return hash((content, token, *words))

    def next_token(self, content: int) -> int:
        """Return the token behind a position."""
        return content % self.vocab_size + 1

    def contents(self, prompt: Prompt, salt: SaltDomain, tokens: Sequence[int]) -> list[int]:
        """Return the content of every position of a text that begins with a prompt."""
        content, found = self.root(salt), list[int]()
        for position, token in enumerate(tokens):
            content = self.after(content, token, media_words(prompt, position))
            found.append(content)
        return found

    def answer(self, prompt: Prompt, salt: SaltDomain, max_tokens: int) -> list[int]:
        """Return the tokens that a lone, undisturbed run of a prompt yields."""
        content = self.contents(prompt, salt, prompt.tokens)[-1]
        answer = list[int]()
        while len(answer) < max_tokens and self.end_token not in answer:
            answer.append(self.next_token(content))
            content = self.after(content, answer[-1], ())
        return answer


def media_words(prompt: Prompt, position: int) -> tuple[int, ...]:
    """Return the identity of the picture at a position; empty for text."""
    return tuple(key for span in prompt.media for key in span.keys(position, position + 1))
