"""Heads of queries, keys and values: their layout, norms and rotation."""

from __future__ import annotations

from typing import TypeAlias

import attrs
import mlx.core as mx

from ..elementwise.norms import Norm


@attrs.frozen(cache_hash=True)
class HeadShape:
    """Layout of heads in a row of joined projections: queries, then keys, then values.

    Attributes:
        num_heads: Query heads.
        kv_heads: Key heads, as many as value heads; 0 if only queries are projected.
        head_dim: Elements of a query or key.
        value_dim: Elements of a value.
        query_stride: Elements from one query to the next; more than `head_dim` if a gate or
            other columns follow each query.
    """

    num_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = attrs.field(
        default=attrs.Factory(lambda self: self.head_dim, takes_self=True)
    )
    query_stride: int = attrs.field(
        default=attrs.Factory(lambda self: self.head_dim, takes_self=True)
    )

    @property
    def ends(self) -> tuple[int, int, int]:
        """Columns after the queries, after the keys and after the values."""
        queries = self.num_heads * self.query_stride
        keys = queries + self.kv_heads * self.head_dim
        return queries, keys, keys + self.kv_heads * self.value_dim


Norms: TypeAlias = tuple[Norm | None, Norm | None, Norm | None]
"""Norms of queries, keys and values; None for none."""


WEIGHTS = ("q_weight", "k_weight", "v_weight")
"""Names of the weights of the norms in kernels."""


@attrs.frozen
class Making:
    """How a kernel makes heads of a row of joined projections.

    Attributes:
        query_stride: Elements from one query to the next.
        turned_dims: Rotated elements of a query or key, 0 for none.
        interleaved: Whether pairs are `(2i, 2i+1)`, not `(i, i + dims/2)`.
        norms: Norms of queries, keys and values: 0 for none, 1 without a weight, 2 with factor
            `weight`, 3 with factor `1 + weight`.
        stores: Whether the row has keys and values, which are stored.
    """

    query_stride: int
    turned_dims: int = 0
    interleaved: bool = False
    norms: tuple[int, int, int] = (0, 0, 0)
    stores: bool = True

    @classmethod
    def of(cls, shape: HeadShape, turns: Turns | None, norms: Norms) -> Making:
        """Return how heads of a shape are made, rotated and normed."""
        codes = [
            0 if norm is None else 1 if norm.weight is None else 2 + norm.zero_centred
            for norm in norms
        ]
        return cls(
            shape.query_stride,
            0 if turns is None else turns.dims,
            turns is not None and turns.interleaved,
            (codes[0], codes[1], codes[2]),
            shape.kv_heads > 0,
        )

    @property
    def unweighted(self) -> list[str]:
        """Names in kernels of the absent weights."""
        return [name for name, code in zip(WEIGHTS, self.norms, strict=True) if code < 2]


def weights_of(norms: Norms) -> list[mx.array]:
    """Return the weights of the norms, without the absent ones."""
    weights = (None if norm is None else norm.weight for norm in norms)
    return [weight for weight in weights if weight is not None]


def epsilons_of(norms: Norms) -> list[float]:
    """Return the epsilons of the norms, 0 for an absent norm."""
    return [0.0 if norm is None else norm.eps for norm in norms]


@attrs.frozen(eq=False)
class Slots:
    """Places of the tokens of a step in the pages of a group of layers.

    Attributes:
        tables: Block of each page of each sequence, `[R, P]` int32.
        rows: Row of `tables` of each token, `[T]` int32.
        positions: Position of each token, `[T]` int32.
    """

    tables: mx.array
    rows: mx.array
    positions: mx.array


@attrs.frozen(eq=False)
class Turns:
    """Rotation of heads at the positions of the tokens of a step.

    Attributes:
        factors: Cosines, then sines of each token, `[T, dims]` float32, times any factor on the
            rotated elements.
        interleaved: Rotate pairs `(2i, 2i+1)` instead of `(i, i + dims/2)`.
    """

    factors: mx.array
    interleaved: bool = False

    @classmethod
    def by(cls, angles: mx.array, *, interleaved: bool = False) -> Turns:
        """Return the rotation by `angles [T, dims/2]`, float32, in radians."""
        return cls(mx.concatenate([mx.cos(angles), mx.sin(angles)], axis=-1), interleaved)

    @property
    def dims(self) -> int:
        """Rotated elements of a head."""
        return self.factors.shape[-1]

    @property
    def cos(self) -> mx.array:
        """Half of the factors, `[T, dims/2]`."""
        return self.factors[:, : self.dims // 2]

    @property
    def sin(self) -> mx.array:
        """Half of the factors, `[T, dims/2]`."""
        return self.factors[:, self.dims // 2 :]
