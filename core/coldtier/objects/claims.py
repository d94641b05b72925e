"""Metadata in the first bytes of an object, taken as they stand.

For listings of many objects: no checksum is computed, and no header is compared with the
header that neve would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from ...ids import ColdKey
from .geometry import STATE
from .header import ABI, DIGITS, LENGTH_BYTES, METADATA
from .keys import ColdGroup, ObjectName

HEAD_BYTES = 1024
"""Bytes of an object that contain its metadata, which come first and take about half."""

_BEGINNING = f'{{"{METADATA}":'
_DIGEST = re.compile(f"[0-9a-f]{{{DIGITS}}}")
_GROUP = re.compile("|".join(group.value for group in ColdGroup))
_DECODER = json.JSONDecoder()


@attrs.frozen
class Link:
    """The other objects that a restore of an object needs.

    Attributes:
        after: Key of the block before the object; `ROOT` for the first block of a chain.
        state: For a block, the group of its sidecars, one of which must exist at the end of
            the block or of a later block of its chain; None if the block needs no sidecar.
    """

    after: ColdKey
    state: ColdGroup | None = None


def link_of(head: bytes, name: ObjectName) -> Link | None:
    """Return the objects that an object needs; None if its first bytes do not name them.

    Args:
        head: The object's first `HEAD_BYTES` bytes, or more.
        name: The object's name.
    """
    claims = claims_of(head, name)
    after, state = claimed_key(claims, "after"), matched(_GROUP, claims.get(STATE))
    if after is None:
        return None
    return Link(ColdKey(after), None if state is None else ColdGroup(state))


def claims_of(head: bytes, name: ObjectName) -> Mapping[str, Any]:
    """Return an object's metadata unchecked; empty if they belong to another object."""
    text = head[LENGTH_BYTES:HEAD_BYTES].decode("ascii", "replace")
    if not text.startswith(_BEGINNING):
        return {}
    try:
        claims, _ = _DECODER.raw_decode(text, len(_BEGINNING))
    except (ValueError, RecursionError):
        return {}
    identity = {"abi": ABI, "group": name.group.value, "key": name.key.hex()}
    if not isinstance(claims, dict) or any(claims.get(k) != v for k, v in identity.items()):
        return {}
    return claims


def claimed_key(claims: Mapping[str, Any], field: str) -> bytes | None:
    """Return a key or a fingerprint from an object's metadata; None if there is none."""
    found = matched(_DIGEST, claims.get(field))
    return None if found is None else bytes.fromhex(found)


def matched(pattern: re.Pattern[str], value: Any) -> str | None:
    """Return `value` if it is a string that the pattern matches in full, else None."""
    return value if isinstance(value, str) and pattern.fullmatch(value) else None
