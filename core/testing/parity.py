"""Parity: tolerances for equal computations, and runs of the same requests in two ways."""

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
"""Logit margin below which another implementation may choose the other token."""

LOGIT_TOLERANCE = 2e-5
"""Bound on the distance of float32 logits that are summed in another order."""


def num_certain(margins: Sequence[float]) -> int:
    """Return the number of greedy tokens before the first tie.

    Tokens behind a tie depend on the choice at the tie and cannot be compared.
    """
    ties = (i for i, margin in enumerate(margins) if margin < TIE_MARGIN)
    return next(ties, len(margins))


def differs_at(actual: Sequence[int], expected: GoldenAnswer) -> int | None:
    """Return the index of the first token unlike the reference's; None without one.

    Args:
        actual: A greedy answer.
        expected: The reference's answer, of which tokens behind the first tie are ignored.
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
