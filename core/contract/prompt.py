"""A prompt: its tokens, where its parts end, and the pictures that some tokens stand for.

Pure values. The keys of pictures take one path to everything that names blocks: sequences,
prefix lookups, published blocks, and objects of the cold tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs
from attrs import validators

ExtraKeys: TypeAlias = tuple[int, ...]
"""Identity of a block beside its tokens, such as pictures: 64-bit words, in order."""

PartKind: TypeAlias = Literal["system", "message", "break"]
"""System prompt with tools, a message, or a break that the caller asked for."""

MEDIA_LAYOUT = 1
"""Version of the words that `Prompt.extra_keys` makes of a picture."""


@attrs.frozen
class PromptPart:
    """A part of a prompt that other prompts may have in common.

    Attributes:
        kind: Its kind.
        end: Tokens up to its end.
    """

    kind: PartKind
    end: int = attrs.field(validator=validators.ge(1))


@attrs.frozen
class MediaSpan:
    """A picture, and the placeholder tokens that stand for it.

    Attributes:
        digest: SHA-256 of the picture's bytes.
        start: Position of its first placeholder token.
        length: Placeholder tokens.
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
        """Position behind its last placeholder token."""
        return self.start + self.length

    def keys(self, first: int, end: int) -> ExtraKeys:
        """Return the words with which the picture enters the block `[first, end)`.

        Layout and preprocessing versions, then for every placeholder of the block its
        position and the four words of the digest.
        """
        words = [int.from_bytes(self.digest[i : i + 8], "little") for i in range(0, 32, 8)]
        covered = range(max(first, self.start), min(end, self.end))
        keys = [MEDIA_LAYOUT, self.preprocessing]
        for position in covered:
            keys += [position, *words]
        return tuple(keys) if covered else ()


@attrs.frozen
class Prompt:
    """A prompt as the engine takes it.

    Attributes:
        tokens: Token ids, at least one.
        parts: Its parts by their ends, ascending; empty where nothing is known of them.
        media: Its pictures in token order; no two overlap.

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

        Blocks of text have none, so that their names do not depend on this function. Blocks
        behind a picture inherit its identity through the chain of parents.
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
