from __future__ import annotations

import math

import mlx.core as mx
import pytest

from neve.metal.attention.scoring import Scoring

pytestmark = pytest.mark.mlx


@pytest.mark.parametrize("softcap", [0.0, -1.0, math.inf, math.nan])
def test_a_softcap_that_is_not_positive_is_refused(softcap: float) -> None:
    """FW-2: the error names the parameter, the value and the rule."""
    with pytest.raises(ValueError, match=rf"softcap must be a positive number, got {softcap}"):
        Scoring(0.5, softcap)


def test_sinks_are_converted_once() -> None:
    """PK-1: kernels read float32, so no launch has to convert."""
    scoring = Scoring(0.5, sinks=mx.zeros(4, mx.bfloat16))

    assert scoring.sinks is not None
    assert scoring.sinks.dtype == mx.float32
