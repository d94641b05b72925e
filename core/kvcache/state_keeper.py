"""When the state of recurrent layers is kept, for how long, and who finds it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ..ids import BlockHash
from .block_identity import PrefixChain
from .retention import Retention, publish, retention, snapshot_ladder
from .snapshots import Snapshot, Snapshots

MAX_SNAPSHOTS = 1024
"""However small states are, looking through them takes its time."""


@attrs.frozen(eq=False)
class KeptState:
    """A state that a sequence has reached and not lost yet.

    Attributes:
        boundary: Tokens that it sums up, a multiple of the block size.
        handle: The state.
    """

    boundary: int
    handle: Any


class StateKeeper:
    """Snapshots of one model. Pure bookkeeping: a state is a handle here.

    Attributes:
        snapshots: What is kept.
        want_ladder: A cold tier wants snapshots at shallow boundaries too.
    """

    def __init__(
        self,
        block_size: int,
        state_bytes: int,
        *,
        max_bytes: int = 0,
        root: str | None = None,
    ) -> None:
        """Keep nothing yet.

        Args:
            block_size: Tokens of a block.
            state_bytes: What one state takes.
            max_bytes: As many states as fit are kept, or as many as `retention` says if
                those are more.
            root: Owner of the root session, if there is one.
        """
        self.snapshots = Snapshots()
        self.want_ladder = False
        self._block_size = block_size
        self._state_bytes = state_bytes
        self._max_bytes = max_bytes
        self._root = root

    def boundaries(self, num_tokens: int, cached: int) -> list[int]:
        """Return the boundaries at which a prefill has to stop for a snapshot."""
        return snapshot_ladder(
            num_tokens, cached, self._block_size, want_ladder=self.want_ladder
        )

    def keep(self, owner: str, chain: PrefixChain, state: KeptState) -> None:
        """Publish a state of a chain whose blocks up to there are published."""
        snapshot = Snapshot(
            owner=owner,
            chain=chain.hashes,
            num_blocks=state.boundary // self._block_size,
            boundary=state.boundary,
            num_bytes=self._state_bytes,
            handle=state.handle,
        )
        publish(self.snapshots, snapshot, self._rules())

    def _rules(self) -> Retention:
        """Return the caps of `retention`, or those that the byte bound allows if it is more."""
        rules = retention(want_ladder=self.want_ladder, root=self._root)
        affordable = min(MAX_SNAPSHOTS, self._max_bytes // max(1, self._state_bytes))
        if affordable <= rules.max_snapshots:
            return rules
        return attrs.evolve(rules, max_snapshots=affordable, max_per_owner=affordable)

    def deepest_boundary(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many leading blocks end at the deepest boundary with a state; or 0."""
        return self.snapshots.deepest_boundary(hashes)

    def state_at(self, block_hash: BlockHash) -> Any:
        """Return the state behind the prefix that ends with that block; None without one."""
        found = self.snapshots.get(block_hash)
        return None if found is None else found.handle

    def on_chain(self, hashes: Sequence[BlockHash]) -> list[Snapshot]:
        """Return the snapshots of a chain, deepest first, one a boundary."""
        found = {
            entry.num_blocks: entry for entry in self.snapshots.entries if entry.lies_on(hashes)
        }
        return [found[num_blocks] for num_blocks in sorted(found, reverse=True)]

    def clear(self) -> None:
        """Forget everything."""
        self.snapshots.clear()
