"""A prompt: its tokens, the ends of its parts, and the pictures behind placeholder tokens.

Pure values. A picture's keys enter the names of blocks by one path for sequences, prefix
lookups, published blocks and objects of the cold tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs
from attrs import validators

ExtraKeys: TypeAlias = tuple[int, ...]
"""Identity of a block beside its tokens, such as pictures: 64-bit words, in order."""

PartKind: TypeAlias = Literal["system", "message", "break"]
"""System prompt with tools; a message; a break that the caller asked for."""

MEDIA_LAYOUT = 1
"""Version of the extra-key words that `Prompt.extra_keys` derives from a picture."""


@attrs.frozen
class PromptPart:
    """A part of a prompt that other prompts may share.

    Attributes:
        kind: System prompt, message or the caller's break.
        end: Tokens of the prompt up to the end of the part.
    """

    kind: PartKind
    end: int = attrs.field(validator=validators.ge(1))


@attrs.frozen
class MediaSpan:
    """A picture, and the span of its placeholder tokens.

    Attributes:
        digest: SHA-256 of the picture's bytes.
        start: Position of the first placeholder token.
        length: Number of placeholder tokens.
        grid: Patches in time, height and width.
        preprocessing: Version of the rules that turn the bytes into pixels.
    """

    digest: bytes = attrs.field(validator=[validators.min_len(32), validators.max_len(32)])
    start: int = attrs.field(validator=validators.ge(0))
    length: int = attrs.field(validator=validators.ge(1))
    grid: tuple[int, int, int] = (1, 1, 1)
    preprocessing: int = attrs.field(default=0, validator=validators.ge(0))

    @property
    def end(self) -> int:
        """Position behind the last placeholder token."""
        return self.start + self.length

    def keys(self, first: int, end: int) -> ExtraKeys:
        """Return the picture's extra-key words for the block `[first, end)`.

        The words are the layout and preprocessing versions, then for every placeholder in the
        block its position and the four words of the digest. No placeholder gives no words.
        """
        words = [int.from_bytes(self.digest[i : i + 8], "little") for i in range(0, 32, 8)]
        covered = range(max(first, self.start), min(end, self.end))
        keys = [MEDIA_LAYOUT, self.preprocessing]
        for position in covered:
            keys += [position, *words]
        return tuple(keys) if covered else ()


@attrs.frozen
class Prompt:
    """A prompt, as input of the engine.

    Attributes:
        tokens: Token ids, at least one.
        parts: The prompt's parts by ascending ends; empty where parts are unknown.
        media: The prompt's pictures in token order; pictures do not overlap.

    Raises:
        ValueError: Ends do not ascend or lie beyond the tokens, or pictures overlap.
    """

    tokens: tuple[int, ...] = attrs.field(converter=tuple, validator=validators.min_len(1))
    parts: tuple[PromptPart, ...] = attrs.field(default=(), converter=tuple)
    media: tuple[MediaSpan, ...] = attrs.field(default=(), converter=tuple)

    def __attrs_post_init__(self) -> None:
        ends = [part.end for part in self.parts]
        if ends != sorted(ends) or (ends and ends[-1] > len(self.tokens)):
            raise ValueError(
                f"ends of parts ascend up to {len(self.tokens)} tokens, got {ends}"
            )
        position = 0
        for picture in self.media:
            if picture.start < position or picture.end > len(self.tokens):
                raise ValueError(
                    f"a picture spans tokens [{picture.start}, {picture.end}), which overlaps "
                    f"another one or leaves the prompt of {len(self.tokens)} tokens"
                )
            position = picture.end

    def extra_keys(self, block_size: int) -> tuple[ExtraKeys, ...]:
        """Return the extra keys of each block up to the last one with a picture.

        Text blocks have no keys, so prompts of text alone never depend on `MEDIA_LAYOUT`.
        Blocks behind a picture inherit its identity through the hash chain.
        """
        if not self.media:
            return ()
        num_blocks = -(-self.media[-1].end // block_size)
        return tuple(
            self._keys(index * block_size, (index + 1) * block_size)
            for index in range(num_blocks)
        )

    def _keys(self, first: int, end: int) -> ExtraKeys:
        return tuple(key for picture in self.media for key in picture.keys(first, end))


def text_prompt(tokens: Sequence[int]) -> Prompt:
    """Return a prompt of tokens alone."""
    return Prompt(tuple(tokens))
