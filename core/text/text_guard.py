r"""Encoding that keeps a caller's special tokens as plain text.

A user who can put `<|im_end|>` into a message could end the message and speak in another role.
So the prompt is encoded by a tokenizer that does not know the text of any added token. It only
knows stand-ins, built with a private character that is absent from the conversation:

    given      say <|im_end|>
    marked     say ◊<|im_end|>                           ◊ is the private character
    rendered   <|im_start|>user\nsay ◊<|im_end|><|im_end|>
    armed      ◊1◊user\nsay <|im_end|>◊2◊                 1 and 2 are token ids
    encoded    one text; a stand-in becomes its id, and other text cannot become an added token

The text between two added tokens is encoded exactly as by the checkpoint's tokenizer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise
from typing import Any, cast

import tokenizers

from ..errors import RequestError

_PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_NOTHING = "(?!)"


class TextGuard:
    """Marks added tokens in given text, and encodes text that contains marks.

    All added tokens are guarded, even tokens that the tokenizer does not call special (such
    as `<think>` and `</tool_call>` in many checkpoints). Tokens of white space alone are not
    guarded, as they control nothing.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._added: dict[int, tokenizers.AddedToken] = backend.get_added_tokens_decoder()
        self._ids = {t.content: i for i, t in self._added.items() if t.content}
        self._guarded = sorted(text for text in self._ids if not _is_blank(text))
        self._longest = max(map(len, self._guarded), default=0)
        self._given_pattern = _longest_first(self._guarded, re.escape)
        self._pattern = _longest_first(self._ids, self._as_matched)
        self._encoder: tuple[str, tokenizers.Tokenizer] | None = None

    def private_character(self, values: Iterable[Any]) -> str:
        """Return a private-use character that occurs in none of the strings in `values`.

        Raises:
            RequestError: The strings contain all 131,068 private-use characters.
        """
        texts = list(_strings(values))
        for code in chain(*_PRIVATE_USE):
            character = chr(code)
            if not any(character in text for text in texts):
                return character
        raise RequestError(
            "the messages use every private-use character of Unicode; leave out one",
            code="invalid_messages",
            param="messages",
        )

    def mark(self, value: Any, private: str) -> Any:
        """Return a copy of a nested value with a mark before each guarded token.

        A suffix that begins a guarded token is marked too, because templates join strings.
        """
        if isinstance(value, str):
            return self._mark_text(value, private)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {self.mark(k, private): self.mark(v, private) for k, v in items}
        if isinstance(value, list | tuple):
            return [self.mark(item, private) for item in cast("Sequence[Any]", value)]
        return value

    def encode(self, rendered: str, private: str) -> list[int]:
        """Return the ids of `rendered`; marked tokens are encoded as plain text.

        Raises:
            RequestError: The model's vocabulary encodes a marked text as its special token.
        """
        first, *marked = rendered.split(private)
        hits = [self._pattern.match(segment) for segment in marked]
        plain = [hit.group() if hit else "" for hit in hits]
        armed = self._arm(first, private) + "".join(
            text + self._arm(segment[len(text) :], private)
            for text, segment in zip(plain, marked, strict=True)
        )
        forbidden = {self._ids[t]: t for t in plain if t and self._is_special(t)}
        encoding = self._encoder_for(private).encode(armed, add_special_tokens=False)
        return [
            _real_id(token, token_id, private, forbidden)
            for token, token_id in zip(encoding.tokens, encoding.ids, strict=True)
        ]

    def _is_special(self, text: str) -> bool:
        return self._added[self._ids[text]].special

    def _as_matched(self, text: str) -> str:
        escaped = re.escape(text)
        whole_word = self._added[self._ids[text]].single_word
        return rf"(?<!\w){escaped}(?!\w)" if whole_word else escaped

    def _mark_text(self, text: str, private: str) -> str:
        starts = {match.start() for match in self._given_pattern.finditer(text)}
        starts.update(self._open_starts(text))
        return private.join(text[a:b] for a, b in pairwise([0, *sorted(starts), len(text)]))

    def _open_starts(self, text: str) -> Iterator[int]:
        """Yield the start of each suffix that begins a guarded token."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            suffix = text[start:]
            nearest = bisect_left(self._guarded, suffix)
            if nearest < len(self._guarded) and self._guarded[nearest].startswith(suffix):
                yield start

    def _arm(self, text: str, private: str) -> str:
        return self._pattern.sub(lambda m: _stand_in(self._ids[m.group()], private), text)

    def _encoder_for(self, private: str) -> tokenizers.Tokenizer:
        """Return a tokenizer with the stand-ins of `private` only; the last one is kept."""
        kept = self._encoder
        if kept is None or kept[0] != private:
            self._encoder = kept = (private, self._build_encoder(private))
        return kept[1]

    def _build_encoder(self, private: str) -> tokenizers.Tokenizer:
        encoder = tokenizers.Tokenizer(self._backend.model)  # shared, not copied
        encoder.normalizer = self._backend.normalizer
        encoder.pre_tokenizer = self._backend.pre_tokenizer
        encoder.add_tokens(
            [
                tokenizers.AddedToken(
                    _stand_in(token_id, private),
                    lstrip=token.lstrip,
                    rstrip=token.rstrip,
                    normalized=token.normalized,
                )
                for token_id, token in self._added.items()
            ]
        )
        return encoder


def _stand_in(token_id: int, private: str) -> str:
    return f"{private}{token_id}{private}"


def _real_id(token: str, token_id: int, private: str, forbidden: Mapping[int, str]) -> int:
    if private in token:
        return int(token.split(private)[1])
    if token_id in forbidden:
        raise RequestError(
            f"{forbidden[token_id]!r} cannot be written as plain text in this vocabulary",
            code="special_token_in_text",
            param="messages",
        )
    return token_id


def _longest_first(texts: Iterable[str], spell: Callable[[str], str]) -> re.Pattern[str]:
    """Compile an alternation that prefers the longest text, as tokenizers do.

    A vocabulary may have thousands of added tokens with one beginning. So the tokens are
    grouped by their first two characters, and a lookahead skips a group in one test.
    """
    in_order = sorted(
        texts, key=lambda text: (len(text[:2]), text[:2], len(text)), reverse=True
    )
    groups = [
        f"(?={re.escape(head)})(?:{'|'.join(map(spell, group))})"
        for head, group in groupby(in_order, key=lambda text: text[:2])
    ]
    return re.compile("|".join(groups) or _NOTHING)


def _is_blank(text: str) -> bool:
    return not text.replace("▁", " ").strip()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[Any, Any]", value).items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from _strings(item)
