"""Models without recurrent layers: no prefill stops for a snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NoSnapshots:
    """The snapshots of a model that keeps no recurrent state. A `scheduler` port.

    Attributes:
        enabled: False.
        num_publications: 0, since no snapshot is ever published.
        num_bytes: 0.
        num_refused: 0.
    """

    enabled = False
    num_publications = 0
    num_bytes = 0
    num_refused = 0

    def boundaries(self, sequence: Any) -> list[int]:
        """Return none."""
        return []

    def shared_prefix(self, one: Any, other: Any) -> int:
        """Return 0: blocks alone are enough to continue from."""
        return 0

    def promise(self, sequence: Any, boundaries: Sequence[int]) -> None:
        """Do nothing."""

    def reach(self, sequence: Any, state: Any, *, shared: bool) -> None:
        """Do nothing."""

    def confirm(self, sequence: Any, state: Any) -> None:
        """Do nothing."""
