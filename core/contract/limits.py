"""Limits for the numbers in config.json.

A config.json may come from any source. A number beyond these limits would overflow an array
dimension, take a long time to fail, or give logits that are not numbers. A number within the
limits either can be computed with, or contradicts the weights and is reported by name.
"""

from __future__ import annotations

from typing import Any

import attrs

from ..errors import ConfigError


@attrs.frozen
class Limits:
    """The least and the greatest value of a number, both allowed; an attrs validator.

    Attributes:
        least: The least value.
        most: The greatest value.
    """

    least: float
    most: float

    def __call__(self, instance: object, attribute: object, value: float | None) -> None:
        """Check a field of an attrs class; None is allowed.

        Raises:
            ValueError: The value lies outside.
        """
        if value is not None and not self.least <= value <= self.most:
            raise ValueError(f"must be from {self}, got {value!r}")

    def __str__(self) -> str:
        return f"{self.least:.12g} to {self.most:.12g}"


SIZE = Limits(1, 2**20)
"""Widths and counts that become a dimension: the product of such a number, a number of common
size and a small factor fits into 32 bits."""
COUNT = Limits(0, 2**20)
"""Counts that may be zero."""
LAYERS = Limits(1, 2**12)
VOCABULARY = Limits(1, 2**24)
TOKENS = Limits(1, 2**31 - 1)
"""Contexts and windows: positions are 32-bit integers."""
EPSILON = Limits(1e-30, 1.0)
"""Constants that norms add to a variance: nonzero in float32, to keep rows of zeros finite."""
FACTOR = Limits(1e-6, 1e6)
"""Factors and bounds of activations, scores and logits."""
SHARE = Limits(1e-6, 1.0)
ROPE_BASE = Limits(1.0, 1e15)
"""Bases of rotary embeddings. Below one, wavelengths would shrink along a head."""
INTEGER = Limits(-(2**31), 2**31 - 1)
REAL = Limits(-1e30, 1e30)
"""Numbers without a narrower limit: a product of a few of them fits into float32."""


def read_number(value: Any, limits: Limits, key: str) -> float:
    """Return a value of config.json as a number within limits.

    Args:
        value: The value.
        limits: The least and the greatest value.
        key: The value's path in config.json, for the error.

    Raises:
        ConfigError: The value is no number, or lies outside the limits.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not limits.least <= value <= limits.most:
        raise ConfigError(key, f"must be a number from {limits}, got {value!r}")
    return float(value)
