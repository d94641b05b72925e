"""Distribution of products of few rows over a GPU."""

from __future__ import annotations

import attrs

MAX_ROWS = 8
"""Most rows of the kernels; for more rows, MLX's product reuses weights better."""

_WORD_BYTES = 16
_SIMDGROUPS = 4
"""Simdgroups of a threadgroup; small threadgroups spread evenly over the cores of a GPU."""
_MAX_SPLIT = 4
_MIN_SIMDGROUPS = 2560
"""With two weight rows a simdgroup, at least so many simdgroups; else simdgroups share sums."""
_MANY_SIMDGROUPS = 4096
"""A simdgroup takes four weight rows if so many simdgroups remain: `x` is read less often."""
_MAX_WORDS = 8
"""Most weight words in flight in a lane, four registers each, if `x` has several rows."""
_MAX_UNROLL = 4
"""Most words in flight of each weight row, if `x` is a single row."""


@attrs.frozen
class Geometry:
    """Distribution of a product over simdgroups.

    Attributes:
        rows: Rows of `x`, padded to a power of two.
        weight_rows: Rows of the weight that a simdgroup reads, a power of two. A gated product
            has at least two, one of the gate and one of the up projection.
        split: Simdgroups that share each sum.
        unroll: Words of 16 bytes of each weight row that a lane reads at once.
    """

    rows: int
    weight_rows: int
    split: int
    unroll: int

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup."""
        return max(_SIMDGROUPS, self.split)


def choose_geometry(num_rows: int, weight_shape: tuple[int, int], itemsize: int) -> Geometry:
    """Return the geometry for a product of `num_rows` rows.

    The order of a sum follows from `split`, which depends on the weight alone. So the result of
    a row does not depend on the other rows of a step.

    Args:
        num_rows: 1 to `MAX_ROWS`.
        weight_shape: `(O, K)`.
        itemsize: Bytes of an element.
    """
    num_weight_rows, num_inputs = weight_shape
    words = max(1, -(-num_inputs * itemsize // (32 * _WORD_BYTES)))
    split = 1
    while (
        split < _MAX_SPLIT
        and 2 * split <= words
        and num_weight_rows // 2 * split < _MIN_SIMDGROUPS
    ):
        split *= 2
    rows = 1 << (num_rows - 1).bit_length()
    many = num_weight_rows // 4 * split >= _MANY_SIMDGROUPS
    weight_rows = 4 if many or rows == MAX_ROWS else 2
    own_words = -(-words // split)
    in_flight = _MAX_UNROLL * weight_rows if rows == 1 else _MAX_WORDS
    steps = -(-own_words * weight_rows // in_flight)
    return Geometry(rows, weight_rows, split, -(-own_words // steps))
