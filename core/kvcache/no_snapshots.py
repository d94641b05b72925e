"""The snapshots of models without recurrent layers: prefills never stop for a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NoSnapshots:
    """No snapshots. Implements `scheduler.cache_port.SnapshotPort`.

    Attributes:
        enabled: False.
        num_publications: 0, since snapshots are not published.
        num_bytes: 0.
        num_refused: 0.
    """

    enabled = False
    num_publications = 0
    num_bytes = 0
    num_refused = 0

    def boundaries(self, sequence: Any) -> list[int]:
        """Return no boundary."""
        return []

    def shared_prefix(self, one: Any, other: Any) -> int:
        """Return 0: a prefix needs blocks only."""
        return 0

    def promise(self, sequence: Any, boundaries: Sequence[int]) -> None:
        """Do nothing."""

    def reach(self, sequence: Any, state: Any, *, shared: bool) -> None:
        """Do nothing."""

    def confirm(self, sequence: Any, state: Any) -> None:
        """Do nothing."""
