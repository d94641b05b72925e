"""What a benchmark reports, and how it repeats."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

import attrs


@attrs.frozen
class Figure:
    """One line of the table.

    Attributes:
        name: What was measured.
        value: The ratio, or the figure in `unit`.
        unit: `x` for a ratio.
        target: What it should be, in words.
        met: Whether it is.
        detail: The two sides behind a ratio.
    """

    name: str
    value: float
    unit: str
    target: str
    met: bool
    detail: str


def ratio(name: str, ours: float, theirs: float, at_least: float, unit: str) -> Figure:
    """Return `ours / theirs` of two speeds, with the bound that it should reach."""
    value = ours / theirs
    detail = f"{ours:.1f} against {theirs:.1f} {unit}"
    return Figure(name, value, "x", f">= {at_least:g}x", value >= at_least, detail)


def bounded(name: str, value: float, at_most: float, unit: str, detail: str = "") -> Figure:
    """Return a figure that should not exceed a bound."""
    return Figure(name, value, unit, f"<= {at_most:g} {unit}", value <= at_most, detail)


def interleaved(sides: Sequence[Callable[[int], float]], repetitions: int) -> list[float]:
    """Return each side's median over repetitions that take turns (A B A B …).

    Args:
        sides: Called with the number of the repetition; each returns its figure.
        repetitions: Rounds; one more is run before them and thrown away.
    """
    rounds = [[side(i) for side in sides] for i in range(repetitions + 1)]
    return [statistics.median(column) for column in zip(*rounds[1:], strict=True)]


def seconds(function: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def random_tokens(count: int, seed: int) -> list[int]:
    """Return token ids that no two seeds share."""
    source = random.Random(seed)
    return [source.randrange(1000, 40_000) for _ in range(count)]
