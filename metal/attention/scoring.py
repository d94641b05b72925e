"""Scale, softcap and sinks of attention scores."""

from __future__ import annotations

import math
from typing import Any

import attrs
import mlx.core as mx


def _float32(sinks: mx.array | None) -> mx.array | None:
    return None if sinks is None else sinks.astype(mx.float32)


def _check_softcap(_: Any, __: Any, softcap: float | None) -> None:
    if softcap is not None and not 0 < softcap < math.inf:
        raise ValueError(f"softcap must be a positive number, got {softcap!r}")


@attrs.frozen(eq=False)
class Scoring:
    """How attention makes scores of queries and keys, and weights of scores.

    A layer builds the value once; every step passes the same object. Two values are equal only
    if they are the same object.

    Attributes:
        scale: Factor on `q·k`, usually `D ** -0.5`.
        softcap: Bound of the scores; a score becomes `softcap * tanh(score / softcap)`. None
            for none.
        sinks: Scores without key and value, one for each query head, that join the softmax of
            the head; `[Hq]`, kept in float32. The softcap does not apply. None for none.

    Raises:
        ValueError: `softcap` is not a positive number.
    """

    scale: float
    softcap: float | None = attrs.field(default=None, validator=_check_softcap)
    sinks: mx.array | None = attrs.field(default=None, converter=_float32)
