"""Parity: when two computations count as one, and how to run the same requests both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .golden import GoldenAnswer

if TYPE_CHECKING:
    from ..engine.completion import Completion
    from ..model import Model

TIE_MARGIN = 1e-3
"""Logit margin below which another implementation may rightly take the other token."""

LOGIT_TOLERANCE = 2e-5
"""Largest distance of float32 logits that summing in another order explains."""


def num_certain(margins: Sequence[float]) -> int:
    """Return how many greedy tokens come before the first tie.

    What follows a tie follows from it, so nothing after it can be compared.
    """
    ties = (i for i, margin in enumerate(margins) if margin < TIE_MARGIN)
    return next(ties, len(margins))


def differs_at(actual: Sequence[int], expected: GoldenAnswer) -> int | None:
    """Return the index of the first token that is not the reference's, None if none is.

    Args:
        actual: A greedy answer.
        expected: The reference's; what follows its first tie is not looked at.
    """
    for index in range(num_certain(expected.margins)):
        if index >= len(actual) or actual[index] != expected.tokens[index]:
            return index
    return None


def logit_distance(actual: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Return the largest difference of two logit arrays, as a share of the second's range."""
    one, other = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(one - other).max() / (other.max() - other.min()))


def one_by_one(
    model: Model, prompts: Sequence[Sequence[int]], **options: Any
) -> list[Completion]:
    """Return the completions of prompts that never share a step."""
    return [model.generate(ids, **options) for ids in prompts]


def at_once(model: Model, prompts: Sequence[Sequence[int]], **options: Any) -> list[Completion]:
    """Return the completions of prompts that were submitted together."""
    return [handle.result() for handle in [model.submit(ids, **options) for ids in prompts]]


def tokens(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    """Return the tokens of each completion."""
    return [completion.tokens for completion in completions]
