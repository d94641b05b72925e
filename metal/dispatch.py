"""Which variant of an operation ran, counted."""

from __future__ import annotations

from collections import Counter

_COUNTS: Counter[str] = Counter()


def record(operation: str, variant: str) -> None:
    """Count one dispatch of `operation` to `variant`."""
    _COUNTS[f"{operation}:{variant}"] += 1


def counts() -> dict[str, int]:
    """Return how often each `operation:variant` was put into a graph by this process."""
    return dict(_COUNTS)
