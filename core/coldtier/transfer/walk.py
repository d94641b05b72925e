"""How far a prefix can come back: the chain proposes, the sidecars dispose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from ...contract.sidecar import SidecarPolicy
from ...ids import SHARED_DOMAIN, SaltDomain
from ..objects.keys import ColdChain, ColdGroup, ObjectName

MAX_PROBES = 8
"""Boundaries at whose sidecars the disk is asked if none is known."""


class ObjectIndex(Protocol):
    """What a walk asks of a store."""

    def contains(self, name: ObjectName) -> bool:
        """Return whether the object is known; no I/O."""
        ...

    def probe(self, name: ObjectName) -> bool:
        """Return whether the object exists; looks at the disk if it is not known."""
        ...


@attrs.frozen
class Backing:
    """A boundary and the sidecar that may make it valid.

    Attributes:
        num_blocks: The boundary, in blocks.
        name: The sidecar.
    """

    num_blocks: int
    name: ObjectName


@attrs.frozen
class RestorePlan:
    """Blocks `[first, end)` of a chain that are to be read.

    Attributes:
        first: The first block that memory does not hold.
        end: Behind the last one that the disk holds, or that a sidecar may back.
        backings: Boundaries that a sidecar may back, deepest first; a family without
            out-of-pool state has none and needs none.
        cause: Why the plan ends where it does; None at the end of what was asked for.
    """

    first: int
    end: int
    backings: tuple[Backing, ...] = ()
    cause: str | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks to read at most."""
        return self.end - self.first


def plan_restore(
    index: ObjectIndex,
    chain: ColdChain,
    tokens: Sequence[int],
    first: int,
    limit: int,
    *,
    policy: SidecarPolicy | None = None,
    salt: SaltDomain = SHARED_DOMAIN,
) -> RestorePlan:
    """Return which blocks the disk may give back.

    The chain is followed to its first hole, which is the only place where the disk is looked
    at. A policy may shorten the result to a boundary with a sidecar, or to nothing, and never
    lengthens it.

    Args:
        index: What is on disk.
        chain: Names of the sequence's blocks; extended as far as needed.
        tokens: The sequence's tokens.
        first: Blocks that memory holds.
        limit: Blocks that are wanted at most.
        policy: Of a family with state outside its blocks.
        salt: Sharing domain, for the cause of a miss.
    """
    end = first
    while end < limit:
        chain.extend(tokens, end + 1)
        if not index.probe(chain.blocks[end]):
            break
        end += 1
    cause = None if end == limit else _cause_of_hole(end, salt)
    if policy is None or end == first:
        return RestorePlan(first, end, (), cause)
    backings = tuple(_backings(index, chain, tokens, policy, first, end))
    if not backings:
        return RestorePlan(first, first, (), "no_sidecar")
    deepest = backings[0].num_blocks
    return RestorePlan(first, deepest, backings, cause if deepest == end else "no_sidecar")


def _cause_of_hole(end: int, salt: SaltDomain) -> str:
    # nothing is known of other domains, and nothing may be: the first block says it all
    return "salt" if end == 0 and salt != SHARED_DOMAIN else "no_block"


def _backings(
    index: ObjectIndex,
    chain: ColdChain,
    tokens: Sequence[int],
    policy: SidecarPolicy,
    first: int,
    end: int,
) -> list[Backing]:
    group, size = ColdGroup(policy.group), chain.block_size
    names = [
        (num_blocks, chain.sidecar(group, tokens, num_blocks * size))
        for num_blocks in range(end, first, -1)
    ]
    known = [Backing(n, name) for n, name in names if index.contains(name)]
    # another process may have written one since the store was scanned: where it would help most
    return known or [Backing(n, name) for n, name in names[:MAX_PROBES] if index.probe(name)]
