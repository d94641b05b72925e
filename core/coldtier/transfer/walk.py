"""The plan of a restore: the chain's stored blocks, cut at a boundary with a sidecar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

from ...contract.sidecar import SidecarPolicy
from ...ids import SHARED_DOMAIN, SaltDomain
from ..objects.keys import ColdChain, ColdGroup, ObjectName

MAX_PROBES = 8
"""Boundaries whose sidecars are looked up on disk if the index knows none."""


class ObjectIndex(Protocol):
    """The store, as a walk uses it."""

    def contains(self, name: ObjectName) -> bool:
        """Return whether the index has the object; no I/O."""
        ...

    def probe(self, name: ObjectName) -> bool:
        """Return whether the object exists; an unknown object is looked up on disk."""
        ...


@attrs.frozen
class Backing:
    """A boundary and its sidecar.

    Attributes:
        num_blocks: The boundary, in blocks.
        name: The sidecar.
    """

    num_blocks: int
    name: ObjectName


@attrs.frozen
class RestorePlan:
    """Blocks `[first, end)` of a chain to read.

    Attributes:
        first: The first block that memory does not hold.
        end: End of the blocks that the disk holds, or deepest boundary with a sidecar.
        backings: Boundaries with a sidecar, deepest first; empty for a family without
            sidecars, whose blocks suffice.
        cause: Miss cause of the first block behind the plan; None if the plan ends at the
            limit.
    """

    first: int
    end: int
    backings: tuple[Backing, ...] = ()
    cause: str | None = None

    @property
    def num_blocks(self) -> int:
        """Upper bound of the blocks to read."""
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
    """Return the blocks that the disk may restore.

    The chain is followed to its first hole, and only the hole is looked up on disk. A policy
    may shorten the result to a boundary with a sidecar, or to nothing, but never lengthens
    the result.

    Args:
        index: The store.
        chain: Names of the sequence's blocks; extended as far as needed.
        tokens: The sequence's tokens.
        first: Blocks that memory holds.
        limit: Upper bound of the plan's end, in blocks.
        policy: Policy of the family's sidecars; None for a family without sidecars.
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
    # A salted request must learn nothing of other domains. In a salted domain a hole at the
    # first block is always reported as `salt`.
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
    # another process may have written a sidecar since the last scan; the deepest ones save most
    return known or [Backing(n, name) for n, name in names[:MAX_PROBES] if index.probe(name)]
