"""What the first bytes of an object say, believed as they stand.

For whoever looks at many objects: no checksum, no comparison with what neve would write.
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
"""So much of an object has its metadata, which stand first and take about half of it."""

_BEGINNING = f'{{"{METADATA}":'
_DIGEST = re.compile(f"[0-9a-f]{{{DIGITS}}}")
_GROUP = re.compile("|".join(group.value for group in ColdGroup))
_DECODER = json.JSONDecoder()


@attrs.frozen
class Link:
    """What an object is of no use without.

    Attributes:
        after: Key of the block that it comes after; `ROOT` for the first block of a chain.
        state: For a block, the group of the sidecars one of which must stand behind it or
            behind a later block of its chain; None if it needs none.
    """

    after: ColdKey
    state: ColdGroup | None = None


def link_of(head: bytes, name: ObjectName) -> Link | None:
    """Return what an object is of no use without; None if its first bytes do not say so.

    Args:
        head: Its first `HEAD_BYTES` bytes, or more.
        name: Its name.
    """
    claims = claims_of(head, name)
    after, state = claimed_key(claims, "after"), matched(_GROUP, claims.get(STATE))
    if after is None:
        return None
    return Link(ColdKey(after), None if state is None else ColdGroup(state))


def claims_of(head: bytes, name: ObjectName) -> Mapping[str, Any]:
    """Return an object's metadata as they stand; nothing if they are another object's."""
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
    """Return a key or a fingerprint among an object's metadata, None if there is none."""
    found = matched(_DIGEST, claims.get(field))
    return None if found is None else bytes.fromhex(found)


def matched(pattern: re.Pattern[str], value: Any) -> str | None:
    """Return a value if it is text of the pattern."""
    return value if isinstance(value, str) and pattern.fullmatch(value) else None
