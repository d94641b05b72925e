"""Contained faults: errors that do not end the engine. Each kind is logged once and counted."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias

from ..errors import shown
from ..log import get_logger

FaultKind: TypeAlias = Literal[
    "listener", "request", "cold", "journal", "closing", "non_finite_logits"
]
"""The source of a fault: an event loop of a caller; the work of one request; the cold tier; the
records; a part that failed to close; logits that are NaN or infinite."""


class Faults:
    """Counts faults by kind. Owned by the engine thread; other threads may read.

    Attributes:
        counts: Kind -> number of faults.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._log = get_logger("engine")

    def snapshot(self) -> Mapping[str, int]:
        """Return the present counts."""
        return dict(self.counts)

    def count(self, kind: FaultKind, error: BaseException) -> None:
        """Count a fault; the first of its kind is logged."""
        before = self.counts.get(kind, 0)
        self.counts[kind] = before + 1
        if not before:
            self._log.warning(
                "engine.fault.contained",
                kind=kind,
                error=type(error).__name__,
                said=shown(error),
            )

    @contextmanager
    def contain(self, kind: FaultKind) -> Generator[None]:
        """Run a block and count its errors instead of raising them."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001  code of a caller may raise anything
            self.count(kind, error)
