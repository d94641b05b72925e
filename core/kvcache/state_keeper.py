"""Keeps snapshots of recurrent states under the limits of `retention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from ..ids import BlockHash
from ..log import get_logger
from .block_identity import PrefixChain
from .memory import MIB, MemoryCoordinator, ceil_mib
from .retention import SNAPSHOT_LIMIT, Retention, publish, retention, snapshot_ladder
from .snapshots import Snapshot, Snapshots

MAX_SNAPSHOTS = 1024
"""Most snapshots even of small states: lookups search all of them."""
MAX_STATE_BYTES = 2048 * MIB
"""Default limit on bytes of kept states."""
MEMORY_SHARE = 32
"""Without a setting, kept states take at most 1/32 of the device's memory."""
ACCOUNT = "state snapshots"
"""Name of the kept states in the memory account."""


@attrs.frozen
class SnapshotBudget:
    """Bytes that kept states may take.

    Attributes:
        max_bytes: As many states as fit are kept, and those of `least_bytes` in any case.
        least_bytes: Bytes of the states that the rules of `retention` keep whatever they take.
    """

    max_bytes: int
    least_bytes: int

    @classmethod
    def of(
        cls, asked_mib: int | None, available_bytes: int, state_bytes: int
    ) -> SnapshotBudget:
        """Return the budget of a model.

        Args:
            asked_mib: The setting in MiB; None for a share of the device's memory.
            available_bytes: Bytes that the device has left.
            state_bytes: Bytes of one state.
        """
        automatic = min(MAX_STATE_BYTES, available_bytes // MEMORY_SHARE)
        max_bytes = automatic if asked_mib is None else asked_mib * MIB
        return cls(max_bytes, SNAPSHOT_LIMIT * state_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes that pools leave to kept states."""
        return max(self.max_bytes, self.least_bytes)


@attrs.frozen(eq=False)
class KeptState:
    """A state at a boundary that a sequence has computed.

    Attributes:
        boundary: The boundary in tokens, a multiple of the block size.
        handle: The state.
    """

    boundary: int
    handle: Any


class StateKeeper:
    """Snapshots of one model. Pure bookkeeping: a state is an opaque handle here.

    Attributes:
        snapshots: The kept snapshots.
        want_ladder: Whether a cold tier wants snapshots at shallow boundaries too.
        num_refused: States that were dropped because the memory account had no room.
    """

    def __init__(
        self,
        block_size: int,
        state_bytes: int,
        *,
        max_bytes: int = 0,
        root: str | None = None,
        account: MemoryCoordinator | None = None,
    ) -> None:
        """Make an empty keeper.

        Args:
            block_size: Tokens of a block.
            state_bytes: Bytes of one state.
            max_bytes: Byte limit of all states. The limits of `retention` apply instead if
                they allow more states.
            root: Owner of the root session; None without one.
            account: The memory account of kept states. Its limit applies before the counts
                of `retention`. None makes a separate account.

        Raises:
            CacheMisuseError: The account has an entry for kept states already.
        """
        self.snapshots = Snapshots()
        self.want_ladder = False
        self._block_size = block_size
        self._state_bytes = state_bytes
        self._max_bytes = max_bytes
        self._root = root
        self.num_refused = 0
        self._account = MemoryCoordinator() if account is None else account
        self._account.register(ACCOUNT, 0)

    def boundaries(self, num_tokens: int, cached: int) -> list[int]:
        """Return the boundaries at which a prefill stops for a snapshot, in tokens."""
        return snapshot_ladder(
            num_tokens, cached, self._block_size, want_ladder=self.want_ladder
        )

    def keep(self, owner: str, chain: PrefixChain, state: KeptState) -> None:
        """Publish a state of a chain. The blocks up to its boundary must be published.

        Older states are dropped to make room. A state that exceeds the memory account's limit
        is not kept.
        """
        snapshot = Snapshot(
            owner=owner,
            chain=chain.hashes,
            num_blocks=state.boundary // self._block_size,
            boundary=state.boundary,
            num_bytes=self._state_bytes,
            handle=state.handle,
        )
        if snapshot in publish(self.snapshots, snapshot, self._rules()):
            self._refuse(snapshot)
        self._enter()

    def _refuse(self, snapshot: Snapshot) -> None:
        if not self.num_refused:  # a model under a tight cap refuses at every request
            get_logger("kvcache").warning(
                "kvcache.snapshot.refused",
                mib=ceil_mib(snapshot.num_bytes),
                limit_bytes=self._account.limit_bytes,
            )
        self.num_refused += 1

    def _enter(self) -> None:
        """Enter what is kept now; never more than the account has room for, by `_rules`."""
        self._account.update(ACCOUNT, self.snapshots.num_bytes)

    def _rules(self) -> Retention:
        """Return the limits of `retention`, or the byte limit's if they allow more states."""
        room = self._account.room(ACCOUNT)
        rules = retention(want_ladder=self.want_ladder, root=self._root, max_bytes=room)
        affordable = min(MAX_SNAPSHOTS, self._max_bytes // max(1, self._state_bytes))
        if affordable <= rules.max_snapshots:
            return rules
        return attrs.evolve(rules, max_snapshots=affordable, max_per_owner=affordable)

    def deepest_boundary(self, hashes: Sequence[BlockHash]) -> int:
        """Return the deepest boundary of a chain with a snapshot, in blocks; 0 without one."""
        return self.snapshots.deepest_boundary(hashes)

    def state_at(self, block_hash: BlockHash) -> Any:
        """Return the state of the prefix that ends with a block; None without a snapshot."""
        found = self.snapshots.get(block_hash)
        return None if found is None else found.handle

    def on_chain(self, hashes: Sequence[BlockHash]) -> list[Snapshot]:
        """Return the snapshots of a chain, deepest first, one per boundary."""
        found = {
            entry.num_blocks: entry for entry in self.snapshots.entries if entry.lies_on(hashes)
        }
        return [found[num_blocks] for num_blocks in sorted(found, reverse=True)]

    def clear(self) -> None:
        """Drop all snapshots."""
        self.snapshots.clear()
        self._enter()
