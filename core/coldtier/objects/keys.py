"""Names of cold objects: digests of everything that decides their content."""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from ...ids import SHARED_DOMAIN, ColdKey, Fingerprint, SaltDomain

KEY_BYTES = 32
SUFFIX = ".safetensors"

ROOT = ColdKey(bytes(KEY_BYTES))
"""Value of `after` for the first block of a chain."""

_TAG = b"neve-cold-v1"


class ColdGroup(enum.Enum):
    """The kinds of object; each group has a name space of its own."""

    KV = "kv"
    GDN_STATE = "gdn_state"
    CONV_STATE = "conv_state"
    SLIDING_WINDOW = "sliding_window"
    SSM_STATE = "ssm_state"

    # names are hashed often, and the hash of an enum is a call into Python
    __hash__ = object.__hash__


# a file's name behind its 64 digits -> group; only KV blocks go without a label
_TAILS = {(SUFFIX if g is ColdGroup.KV else f".{g.value}{SUFFIX}"): g for g in ColdGroup}
_LABELS = {group: tail for tail, group in _TAILS.items()}


class ObjectName(NamedTuple):
    """One object's name. A tuple, since a large store makes and hashes many at once.

    Attributes:
        key: The object's key.
        group: The object's group.
    """

    key: ColdKey
    group: ColdGroup = ColdGroup.KV

    @property
    def file_name(self) -> str:
        """Name of the object's file; only the files of KV blocks have no group label."""
        return self.key.hex() + _LABELS[self.group]

    @classmethod
    def parse(cls, file_name: str) -> ObjectName | None:
        """Return the object that a file name denotes; None for any other file."""
        digits, group = file_name[: 2 * KEY_BYTES], _TAILS.get(file_name[2 * KEY_BYTES :])
        if group is None:
            return None
        try:
            key = bytes.fromhex(digits)
        except ValueError:
            return None
        return cls(ColdKey(key), group) if key.hex() == digits else None  # one spelling only


def object_key(
    group: ColdGroup,
    fingerprint: Fingerprint,
    parent: ColdKey,
    index: int,
    tokens: Sequence[int],
    extra_keys: Sequence[int] = (),
    salt: SaltDomain = SHARED_DOMAIN,
) -> ColdKey:
    """Return the key of the object of `group` at the end of block `index`.

    Lengths precede the values that they count, so no two inputs give the same bytes. The salt
    enters block 0 only; later keys inherit the salt through the parent.

    Args:
        group: Name space.
        fingerprint: Fingerprint of the model.
        parent: Key of the KV block before; 32 zero bytes for block 0.
        index: Index of the block in the chain.
        tokens: Token ids of the block, 32 bits each.
        extra_keys: Further identity of the block, such as pictures, 64 bits each.
        salt: Sharing domain of the chain.
    """
    label = group.value.encode()
    domain = salt if index == 0 else SHARED_DOMAIN
    layout = f"<B{len(label)}s{KEY_BYTES}s{KEY_BYTES}s4Q{len(tokens)}I{len(extra_keys)}Q"
    counts = (index, domain, len(tokens), len(extra_keys))
    data = struct.pack(
        layout, len(label), label, fingerprint, parent, *counts, *tokens, *extra_keys
    )
    return ColdKey(hashlib.sha256(_TAG + data).digest())


class ColdChain:
    """Keys of a sequence's full blocks and sidecars, each computed once.

    Attributes:
        block_size: Tokens of a block.
        blocks: Names of the KV blocks so far, in chain order.
    """

    def __init__(
        self,
        fingerprint: Fingerprint,
        block_size: int,
        salt: SaltDomain = SHARED_DOMAIN,
        extra_keys: Sequence[Sequence[int]] = (),
    ) -> None:
        self.block_size = block_size
        self.blocks: list[ObjectName] = []
        self._fingerprint = fingerprint
        self._salt = salt
        self._extra_keys = extra_keys

    def extend(self, tokens: Sequence[int], num_blocks: int) -> None:
        """Compute the names of the blocks of `tokens` up to `num_blocks`."""
        for index in range(len(self.blocks), num_blocks):
            self.blocks.append(self._name(ColdGroup.KV, tokens, index))

    def sidecar(self, group: ColdGroup, tokens: Sequence[int], boundary: int) -> ObjectName:
        """Return the name of a group's state after `boundary` tokens.

        Args:
            group: Any but KV.
            tokens: The sequence's tokens.
            boundary: A positive multiple of the block size; the chain must reach up to the
                block before it.

        Raises:
            ValueError: The boundary is no positive multiple of the block size, or the group
                is KV.
        """
        if boundary < 1 or boundary % self.block_size or group is ColdGroup.KV:
            raise ValueError(f"{boundary} is no boundary of {group.value} state")
        return self._name(group, tokens, boundary // self.block_size - 1)

    def after(self, num_blocks: int) -> ColdKey:
        """Return the key of the last of the first `num_blocks` blocks; `ROOT` for none."""
        return self.blocks[num_blocks - 1].key if num_blocks else ROOT

    def _name(self, group: ColdGroup, tokens: Sequence[int], index: int) -> ObjectName:
        start = index * self.block_size
        extra_keys = self._extra_keys[index] if index < len(self._extra_keys) else ()
        block = tokens[start : start + self.block_size]
        key = object_key(
            group, self._fingerprint, self.after(index), index, block, extra_keys, self._salt
        )
        return ObjectName(key, group)
