"""The read requests of a restore, with the expected content of each object."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs

from ...contract.sidecar import SidecarPolicy
from ...ids import Fingerprint
from ..objects.format import decode, decode_block, sidecar_layout
from ..objects.header import ObjectLayout
from ..objects.keys import ColdChain, ColdGroup, ObjectName
from .ticket import Payload, ReadRequest, Ticket, max_ready
from .walk import Backing, RestorePlan


@attrs.frozen(eq=False)
class Wanted:
    """Makes the read requests of one model.

    Attributes:
        fingerprint: Fingerprint of the model.
        layout: Layout of the model's blocks.
        block_size: Tokens of a block.
        policy: Policy of the family's sidecars; None for a family without sidecars.
    """

    fingerprint: Fingerprint
    layout: ObjectLayout
    block_size: int
    policy: SidecarPolicy | None

    def ticket(self, plan: RestorePlan, chain: ColdChain, tokens: Sequence[int]) -> Ticket:
        """Return a ticket for a plan's blocks and sidecars."""
        return Ticket(
            [self._block(chain.blocks[i], tokens, i) for i in range(plan.first, plan.end)],
            [self._sidecar(plan.first, backing) for backing in plan.backings],
            max_ready(self.layout.max_bytes),
        )

    def _block(self, name: ObjectName, tokens: Sequence[int], index: int) -> ReadRequest:
        begin = index * self.block_size
        check = partial(
            _decode_pages,
            name=name,
            fingerprint=self.fingerprint,
            layout=self.layout,
            tokens=tuple(tokens[begin : begin + self.block_size]),
        )
        return ReadRequest(name, self.layout.max_bytes, check)

    def _sidecar(self, first: int, backing: Backing) -> ReadRequest:
        assert self.policy is not None
        boundary = backing.num_blocks * self.block_size
        group = ColdGroup(self.policy.group)
        layout = sidecar_layout(group, self.policy.expected_at(boundary), boundary)
        check = partial(decode, name=backing.name, fingerprint=self.fingerprint, layout=layout)
        return ReadRequest(backing.name, layout.max_bytes, check, backing.num_blocks - first)


def _decode_pages(data: memoryview, **expected: Any) -> Payload:
    """Return the pages of a block, which are contiguous, as one view."""
    pages = decode_block(data, **expected)
    return [data[data.nbytes - sum(page.nbytes for page in pages) :]]
