"""Block hashes: a hash covers the tokens of a full block and of all blocks before it."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import attrs

from ..arguments import text
from ..contract.prompt import ExtraKeys
from ..errors import SaltTooLongError
from ..ids import SHARED_DOMAIN, BlockHash, SaltDomain

MAX_SALT_BYTES = 256
HASH_BYTES = 16

ROOT_HASH = BlockHash(bytes(HASH_BYTES))
"""The parent of every block 0."""


def salt_domain(salt: str | None) -> SaltDomain:
    """Return the sharing domain of a caller's salt.

    Every string, the empty string included, has its own domain; None is the shared domain.

    Raises:
        RequestError: The salt is not a string.
        SaltTooLongError: The salt has more than 256 UTF-8 bytes.
    """
    if salt is None:
        return SHARED_DOMAIN
    # JSON can carry a lone surrogate, which plain UTF-8 refuses
    encoded = text("cache_salt", salt).encode("utf-8", "surrogatepass")
    if len(encoded) > MAX_SALT_BYTES:
        raise SaltTooLongError(len(encoded), MAX_SALT_BYTES)
    digest = hashlib.sha256(encoded).digest()
    # a digest of zeros must not become the shared domain
    return SaltDomain(int.from_bytes(digest[:8], "little") or 1)


@attrs.frozen
class BlockIdentity:
    """The input of a block's hash. Lookups compare identities, so a collision is a miss.

    Attributes:
        parent: Hash of the previous block; `ROOT_HASH` for block 0.
        tokens: Token ids of the block.
        extra_keys: Identity of content beside tokens, such as images; empty for text.
        salt: Sharing domain of the chain.
        index: The block's index in the chain.
    """

    parent: BlockHash
    tokens: tuple[int, ...]
    extra_keys: ExtraKeys
    salt: SaltDomain
    index: int


def block_hash(identity: BlockIdentity) -> BlockHash:
    """Return the 128-bit digest of a block.

    The salt is hashed in block 0 only: parent hashes carry the salt to the rest of the chain.
    The header holds the lengths of tokens and keys, so no two identities give the same bytes.

    Raises:
        ValueError: A token id does not fit 32 bits, or an extra key 64.
    """
    tokens, extra_keys = identity.tokens, identity.extra_keys
    salt = identity.salt if identity.index == 0 else SHARED_DOMAIN
    header = (identity.parent, identity.index, salt, len(tokens), len(extra_keys))
    layout = f"<{HASH_BYTES}s4Q{len(tokens)}I{len(extra_keys)}Q"
    try:
        data = struct.pack(layout, *header, *tokens, *extra_keys)
    except struct.error as error:
        raise ValueError(
            f"token ids are 32 bits and extra keys 64 bits wide: {error}"
        ) from None
    return BlockHash(
        hashlib.blake2b(data, digest_size=HASH_BYTES, person=b"neve-kv-block").digest()
    )


class PrefixChain:
    """Identities and hashes of a sequence's full blocks, each computed once.

    Attributes:
        block_size: Tokens of a block.
        salt: Sharing domain.
        extra_keys: One tuple per block from block 0 on; blocks beyond the tuples have no keys.
        identities: Identities of the blocks hashed so far, first block first.
        hashes: Hashes of the same blocks.
    """

    __slots__ = ("block_size", "extra_keys", "hashes", "identities", "salt")

    def __init__(
        self,
        block_size: int,
        salt: SaltDomain = SHARED_DOMAIN,
        extra_keys: Sequence[ExtraKeys] = (),
    ) -> None:
        self.block_size = block_size
        self.salt = salt
        self.extra_keys = tuple(extra_keys)
        self.identities: list[BlockIdentity] = []
        self.hashes: list[BlockHash] = []

    def extend(self, tokens: Sequence[int], num_blocks: int) -> None:
        """Extend the chain to at least `num_blocks` blocks. Known hashes are kept.

        Args:
            tokens: The sequence's tokens from position 0 on; at least `num_blocks` full blocks.
            num_blocks: Least length of the chain in blocks.
        """
        for index in range(len(self.hashes), num_blocks):
            identity = self._identity(tokens, index)
            digest = block_hash(identity)
            self.identities.append(identity)
            self.hashes.append(digest)

    def _identity(self, tokens: Sequence[int], index: int) -> BlockIdentity:
        start = index * self.block_size
        return BlockIdentity(
            parent=self.hashes[-1] if self.hashes else ROOT_HASH,
            tokens=tuple(tokens[start : start + self.block_size]),
            extra_keys=self.extra_keys[index] if index < len(self.extra_keys) else (),
            salt=self.salt,
            index=index,
        )
