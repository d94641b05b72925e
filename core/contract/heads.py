"""Projections of an attention layer, as input of `ForwardContext.attend_projected`."""

from __future__ import annotations

import attrs
import mlx.core as mx

from ..metal.attention.head_shape import HeadShape as HeadShape
from ..metal.elementwise.norms import Norm as Norm


@attrs.frozen
class RopeSpec:
    """A rotary embedding.

    Attributes:
        dims: Leading elements of a head that are rotated, even.
        theta: Base of the geometric series of wavelengths.
        interleaved: Rotate pairs `(2i, 2i+1)` instead of `(i, i + dims/2)`.
        inv_freq: Angular frequencies `[dims/2]` in radians a token, when a scaling rule
            changed them; None means `theta ** (-2i / dims)`.
        scale: Factor on the rotated elements (the attention factor of YaRN).
        axes: Axis of the rotary positions by which each pair is rotated, `[dims/2]` of 0, 1
            and 2; None means the first axis for all. Where a step's positions have one axis,
            all pairs are rotated by it.
    """

    dims: int
    theta: float
    interleaved: bool = False
    inv_freq: tuple[float, ...] | None = None
    scale: float = 1.0
    axes: tuple[int, ...] | None = None

    def __attrs_post_init__(self) -> None:
        axes, num_pairs = self.axes, self.dims // 2
        if axes is not None and (len(axes) != num_pairs or not {*axes} <= {0, 1, 2}):
            raise ValueError(f"axes must be {num_pairs} of the axes 0, 1 and 2, got {axes}")


@attrs.frozen(eq=False)
class Projected:
    """Queries, keys and values of a step's tokens, before norms and rotation.

    `layers.heads.prepare` is the reference for the operations that follow.

    Attributes:
        parts: One array `[T, W]` with queries, keys and values in the columns that `shape`
            names; or separate arrays for queries, keys and values, `[T, W]` each.
        shape: Columns of the heads in a row.
        q_norm: Norm of queries, None for none.
        k_norm: Norm of keys, None for none.
        v_norm: Norm of values, None for none.
        rope: Rotation of queries and keys after their norms, None for none.
    """

    parts: tuple[mx.array, ...]
    shape: HeadShape
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    rope: RopeSpec | None = None

    @property
    def joined(self) -> mx.array:
        """One array `[T, W]` with the columns of all parts."""
        return self.parts[0] if len(self.parts) == 1 else mx.concatenate([*self.parts], axis=-1)
