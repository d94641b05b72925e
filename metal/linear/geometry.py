"""How the products of few rows are shared out over a GPU."""

from __future__ import annotations

import attrs

MAX_ROWS = 8
"""Rows that the kernels take at most: with more, a matrix product shares its weights better."""

_WORD_BYTES = 16
_SIMDGROUPS = 4
"""Of a threadgroup: small ones spread evenly over the cores of a GPU."""
_MAX_SPLIT = 4
_MIN_SIMDGROUPS = 2560
"""Two weight rows a simdgroup shall make this many; else they share the sums."""
_MANY_SIMDGROUPS = 4096
"""If four weight rows a simdgroup still make this many, it takes four: x is read less often."""
_MAX_WORDS = 8
"""Words of weights that a lane has in flight, four registers each, if x has several rows."""
_MAX_UNROLL = 4
"""Words of each weight row in flight, where x is a single row."""


@attrs.frozen
class Geometry:
    """How a product is shared out.

    Attributes:
        rows: Of x, padded to a power of two.
        weight_rows: Rows of the weight that a simdgroup reads, a power of two; gates and ups
            are as many, so at least two if there are any.
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
    """Return how a product of `num_rows` rows is shared out.

    What orders a sum, `split`, depends on the weight alone: a row's result is the same
    whatever else a step computes.

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
