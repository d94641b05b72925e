"""Faults that the engine survives: contained, logged once a kind, counted."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Literal, TypeAlias

from ..errors import shown
from ..log import get_logger

FaultKind: TypeAlias = Literal[
    "listener", "request", "cold", "journal", "closing", "non_finite_logits"
]
"""Where a fault was: an event loop or another listener of a caller; one request's own work; the
cold tier; the records; a part that did not close; a model's logits."""


class Faults:
    """Counts faults; the engine thread owns it, others may read.

    Attributes:
        counts: Kind -> faults so far.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._log = get_logger("engine")

    def snapshot(self) -> Mapping[str, int]:
        """Return the counts as they are now."""
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
        """Run a block whose failure is nobody else's: whatever it raises is counted."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001  code of a caller may raise anything
            self.count(kind, error)
