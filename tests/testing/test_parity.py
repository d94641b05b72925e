"""When two computations count as one."""

from __future__ import annotations

import numpy as np
import pytest

from neve.testing.golden import GoldenAnswer
from neve.testing.parity import differs_at, logit_distance, num_certain


@pytest.mark.parametrize(
    ("margins", "num"),
    [([], 0), ([5.0, 2.0], 2), ([5.0, 1e-4, 9.0], 1), ([1e-3], 1), ([0.0], 0)],
)
def test_tokens_before_the_first_tie_are_certain(margins: list[float], num: int):
    """FA: where the reference could not decide, nothing after it is compared."""
    assert num_certain(margins) == num


@pytest.mark.parametrize(
    ("actual", "index"),
    [
        ((1, 2, 3, 4), None),
        ((1, 2, 9, 9), None),
        ((1, 2), None),
        ((1, 7, 3, 4), 1),
        ((1,), 1),
        ((), 0),
    ],
)
def test_first_difference_is_found(actual: tuple[int, ...], index: int | None):
    """FA: a wrong or absent token counts, unless it comes at or after a tie."""
    expected = GoldenAnswer((1, 2, 3, 4), (5.0, 5.0, 1e-4, 5.0))

    assert differs_at(actual, expected) == index


def test_distance_is_a_share_of_the_range():
    """FA: distances do not depend on the scale of the logits."""
    expected = np.array([[-10.0, 0.0, 30.0]])
    actual = expected + np.array([[0.0, 0.4, -0.1]])

    assert logit_distance(actual, expected) == pytest.approx(0.01)
    assert logit_distance(100 * actual, 100 * expected) == pytest.approx(0.01)
    assert logit_distance(expected, expected) == 0
